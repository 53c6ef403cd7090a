// Table look-ups, positions and rotary embeddings.
//
// embedding(ids I32[N], weight[V, C]) -> [N, C]
//   Row ids[n] of the table, bit for bit, in its floating dtype. ids lie in
//   [0, V): the data layer checks them. The reference checks again; other
//   backends give zeros for an id outside and never read out of bounds.
//
// embedding_gradient(ids I32[N], dy[N, C]) -> dweight[V, C]
//   Attributes: rows (V, required), dtype (of dweight; default dy's). Can
//   accumulate; without accumulation untouched rows are zero.
//   dweight[v] = sum of dy[n] over the n with ids[n] == v, in FP32 in the order
//   of n (on top of the old value when accumulating), rounded once. An id
//   outside [0, V) contributes nothing.
//
// positions(position I64 scalar) -> I32[batch * length]
//   Attributes: batch, length (required). Element b * length + t is
//   position + t.
//
// rotary(x[B, T, H, D], positions I32[B * T]) -> y[B, T, H, D]
//   D even. Half-split convention of Hugging Face's Llama: with i < D/2,
//   a = positions[b * T + t] * f_i,
//   y[i] = x[i] cos a - x[i + D/2] sin a,
//   y[i + D/2] = x[i + D/2] cos a + x[i] sin a.
//   Attributes: theta (double, required; f_i = theta^(-2i/D)); inverse (1: the
//   rotation by -a, which is the gradient); rope_type ("" or "llama3"; the
//   latter needs the doubles factor, low_freq_factor, high_freq_factor and the
//   int original_max_position).
//   f_i and a are F32 numbers (for every dtype of x, F64 too, as in Hugging
//   Face's code); cos and sin are rounded to F32, then to x's dtype; the two
//   products and their sum are FP32 (FP64 for F64), rounded once. x and y may
//   be strided. Source: Su et al., "RoFormer", 2021; Llama 3.1 scaling of
//   frequencies as published with its configuration.
#ifndef KERNELS_EMBEDDING_EMBEDDING_H_
#define KERNELS_EMBEDDING_EMBEDDING_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> EmbeddingOps();
absl::Span<const KernelDef> EmbeddingReferenceKernels();
absl::Span<const KernelDef> EmbeddingCpuKernels();
absl::Span<const KernelDef> EmbeddingCudaKernels();

// Whether an op has the attributes of a rotation.
absl::Status CheckRotaryAttributes(const Attributes& attributes);

// The D/2 frequencies f_i of a rotary op with these attributes.
std::vector<float> RotaryFrequencies(const Attributes& attributes,
                                     int64_t head_size);

}  // namespace shardgraph

#endif  // KERNELS_EMBEDDING_EMBEDDING_H_
