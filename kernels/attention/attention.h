// Scaled dot-product attention with grouped heads, and its gradient. Neither
// ever holds a T x S matrix in memory.
//
// attention(q, k, v [, positions] [, query_offset] [, documents]
//           [, sequence_ids, run_step]) -> out, lse
//   s[b, h, i, j] = scale * sum over d of q[b, i, h, d] k[b, j, g, d],
//                   g = h / (H / K)
//   p[b, h, i, :] = softmax over the visible j of s[b, h, i, :]
//   out[b, i, h, d] = sum over visible j of p'[b, h, i, j] v[b, j, g, d],
//                     p' = dropout(p)
//   lse[b, h, i] = log of the sum over visible j of exp(s[b, h, i, j])
//   q             [B, T, H, D]; strided
//   k, v          [B, S, K, D]; strided; H must be a multiple of K
//   positions     I32[B * T], when has_rotary: q and k are turned by them
//                 first, as the op rotary does, whose attributes this one has
//                 then (kernels/embedding/embedding.h), with its rounding;
//                 D even, S == T, no query_offset
//   query_offset  scalar I64, when has_offset: position of query 0 among the
//                 keys, at least 0, offset + T <= S; 0 when absent
//   documents     I32[B, S], when has_documents: j is visible to i only when
//                 documents[b, j] == documents[b, i + offset];
//                 without has_offset then T == S
//   sequence_ids  I64[B], run_step scalar I64, when dropout > 0
//   out           [B, T, H, D] of q's dtype
//   lse           [B, H, T], F32 (F64 for F64): saved for the gradient
//   Attributes:
//     causal         0 or 1: j is visible to i only when j <= i + offset;
//                    without has_offset then T == S
//     scale          double, default 1 / sqrt(D)
//     has_rotary, has_offset, has_documents  0 or 1
//     dropout        rate in [0, 1), default 0; seed, key: int. p'[b, h, i, j]
//                    is 0 or p / (1 - rate), decided by number (h T + i) S + j
//                    of the stream MakeRandomKey(seed, key, run_step,
//                    sequence_ids[b]) (kernels/random/random.h).
//   Scores, exponentials and sums are FP32; out is rounded once. A backend may
//   round the exponentials to q's dtype for the product with v. A query that
//   sees no key has out = 0 and lse = -infinity; NaN in q, or in a key or value
//   that it sees, makes both NaN (a value: out alone), never 0.
//   Source: Dao et al., "FlashAttention", 2022 (online softmax by blocks).
//   Cost: 4 B H T S D matmul FLOPs, half of it when causal without offset.
//
// attention_gradient(dout, q, k, v, out, lse [, positions] [, documents]
//                    [, sequence_ids, run_step]) -> dq, dk, dv
//   dp'[i, j] = sum over d of dout[i, d] v[j, d];  dp = dropout(dp')
//   ds[i, j]  = p[i, j] (dp[i, j] - sum over d of dout[i, d] out[i, d])
//   dq[i] = scale * sum over j of ds[i, j] k[j]
//   dk[j] = scale * sum over i, and over the heads of j's group, of
//           ds[i, j] q[i]
//   dv[j] = sum over i and those heads of p'[i, j] dout[i]
//   p is recomputed from q, k and lse. Same attributes; has_offset must be 0.
//   has_rotary: q and k are turned again, and dq and dk, rounded, turned back.
//   dq, dk, dv have the types of q, k, v; strided. Deterministic, unless the
//   attribute fast is 1: then a backend may add the terms of dq in an order
//   that changes from run to run. All sums are FP32; each result is rounded
//   once. A backend may round p and ds to q's dtype for the products.
//   Cost: 10 B H T S D matmul FLOPs, half of it when causal.
#ifndef KERNELS_ATTENTION_ATTENTION_H_
#define KERNELS_ATTENTION_ATTENTION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> AttentionOps();
absl::Span<const KernelDef>
AttentionReferenceKernels();                        // every floating dtype
absl::Span<const KernelDef> AttentionCpuKernels();  // F32, BF16
absl::Span<const KernelDef> AttentionCudaKernels();

// What both ops read from attributes and shapes.
struct AttentionConfig {
  int64_t batch = 0;
  int64_t queries = 0;   // T
  int64_t keys = 0;      // S
  int64_t heads = 0;     // H
  int64_t kv_heads = 0;  // K
  int64_t width = 0;     // D, of one head
  double scale = 0;
  bool causal = false;
  bool has_rotary = false;
  bool has_offset = false;
  bool has_documents = false;
  double dropout = 0;
  uint64_t seed = 0;
  uint64_t key = 0;
  bool fast = false;

  // q [B, T, H, D] and k [B, S, K, D].
  AttentionConfig(const Attributes& attributes, const TensorType& q,
                  const TensorType& k);
  int64_t heads_per_group() const { return heads / kv_heads; }
};

}  // namespace shardgraph

#endif  // KERNELS_ATTENTION_ATTENTION_H_
