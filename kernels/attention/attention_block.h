// Attention of one head, compiled for each CPU target: scores of 96 queries by
// 96 keys at a time, never more.
//
// Plain structs only (kernels/cpu/target.h says why). kernels/attention/
// attention.h has the formulas. No allocation; threads need 2 MiB of stack.
#ifndef KERNELS_ATTENTION_ATTENTION_BLOCK_H_
#define KERNELS_ATTENTION_ATTENTION_BLOCK_H_

#include <cstdint>

namespace shardgraph {

inline constexpr int64_t kAttentionQueries = 384;  // of one task
inline constexpr int64_t kMaxHeadWidth = 256;

// Rows of one head: row t begins at element t * stride. FP32 or BF16.
struct HeadRows {
  void* data = nullptr;
  int64_t stride = 0;
};

struct AttentionHead;

// What dropout multiplies probabilities with: that of query i + r and key j + c
// goes to kept[r * row_stride + c * column_stride], 0 <= r < rows, 0 <= c <
// columns.
using KeptFunction = void(const AttentionHead& head, int64_t i, int64_t j,
                          int64_t rows, int64_t columns, int64_t row_stride,
                          int64_t column_stride, float* kept);

// One query head and its key head.
struct AttentionHead {
  bool bf16 = false;  // q, k, v, out and their gradients
  int64_t queries = 0;
  int64_t keys = 0;
  int64_t width = 0;  // at most kMaxHeadWidth
  float scale = 1;
  // Key j is visible to query i only when j <= i + offset, if causal, and when
  // documents[j] == documents[i + offset], unless null.
  bool causal = false;
  int64_t offset = 0;
  const int32_t* documents = nullptr;
  KeptFunction* kept = nullptr;   // null without dropout
  const void* dropout = nullptr;  // what `kept` knows, with batch and index
  int64_t batch = 0;
  int64_t index = 0;

  // Null, or what rows of q and k are turned by: the cosines, then the sines of
  // row t from t * width on. The width is even then, and queries == keys.
  const float* rotary = nullptr;

  HeadRows q, k, v, out;
  float* lse = nullptr;  // [queries]

  // For the gradient. Heads of one group have the same dk and dv.
  HeadRows dout, dq, dk, dv;
  float* dq_sums = nullptr;  // scratch, [queries, width]
  float* deltas = nullptr;   // scratch, [queries]
};

// out and lse of queries [i, i + kAttentionQueries).
using AttentionForwardFunction = void(const AttentionHead& head, int64_t i);

// dq of `count` heads that share a key head, and its dk and dv.
using AttentionGradientFunction = void(const AttentionHead* heads,
                                       int64_t count);

namespace baseline {
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace baseline
namespace avx2 {
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace avx2
namespace avx512 {
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace avx512
namespace avx512_bf16 {  // BF16 heads only
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace avx512_bf16
namespace amx {  // BF16 heads only
AttentionForwardFunction AttentionForward;
AttentionGradientFunction AttentionGradient;
}  // namespace amx

}  // namespace shardgraph

#endif  // KERNELS_ATTENTION_ATTENTION_BLOCK_H_
