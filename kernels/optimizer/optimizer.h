// Accumulation, the global norm and the update of flat shards.
//
// A flat parameter of n * group_size elements is split evenly over the ranks of
// the group in the attribute "group"; tensors here are one rank's shard,
// [n], whose first element is element context.rank * n of the flat parameter.
//
// Attribute "segments": flattened triples (begin, end, g): elements
// [begin, end) of the flat parameter belong to optimizer group g, 0 <= g < 8.
// Sorted and disjoint; what no segment covers is padding and is never read or
// written. The triples are the same on every rank; a kernel clips them to its
// shard in `prepare`.
//
// accumulate(destination[n], contribution[n], micro I64 scalar) -> destination
//   In place. destination = micro == 0 ? contribution
//                                      : destination + contribution.
//   F32 or F64, both alike; any shape. On micro-batch 0 destination may hold
//   anything, NaN included.
//
// sum_pieces(pieces[size * n]) -> F32[n]
//   BF16 or F32. Attribute: size, at least 1. result[i] = pieces[i] +
//   pieces[n + i] + ..., added in this order in FP32. Behind an all_to_all the
//   pieces are those of the ranks, in order: a reduction that rounds only what
//   is sent.
//
// sum_of_squares(gradient F32[n]) -> F64 scalar
//   Attributes: segments, group. FP32 partial sums over each block of 4,096
//   elements of the flat parameter (clipped to shard and segments), added up in
//   FP64 in order of blocks: each element once, padding never.
//
// finish_gradients(sums F64[U], token_count F64, nominal_tokens F64,
//                  loss_scale F32)
//     -> gradient_norm F64, gradient_scale F64, found_inf I32   (scalars)
//   Attribute: max_norm (double; 0: no clipping).
//   sum = sums added in order; average = nominal_tokens / token_count /
//   loss_scale, or 0 when token_count is 0; gradient_norm = sqrt(sum) *
//   average; clip = max_norm > 0 ? min(1, max_norm / (gradient_norm + 1e-6))
//   : 1; gradient_scale = average * clip. found_inf = sum is not finite;
//   gradient_scale is 0 then.
//
// adamw(master F32[n], gradient F32[n], exp_avg F32[n], exp_avg_sq F32[n]
//       [, compute[n]], learning_rate F32[8], beta1_power F64[8],
//       beta2_power F64[8], gradient_scale F64 scalar, found_inf I32 scalar)
//     -> master, exp_avg, exp_avg_sq [, compute]     (in place)
//   Attributes: segments, group, has_compute (compute is BF16 or F16), and per
//   optimizer group g in segments the doubles beta1_g, beta2_g, epsilon_g,
//   weight_decay_g. One pass. torch.optim.AdamW's order of operations, FP32 for
//   each element; the scalars in brackets are computed in FP64 and rounded to
//   FP32 once:
//     d     = gradient * [gradient_scale]
//     p     = master * [1 - lr * weight_decay]
//     m     = m + [1 - beta1] * (d - m)
//     v     = v * [beta2] + [1 - beta2] * d * d
//     denom = sqrt(v) / [sqrt(1 - beta2_power * beta2)] + [epsilon]
//     p     = p + [-lr / (1 - beta1_power * beta1)] * m / denom
//   beta powers are those before this step. compute = master rounded. When
//   found_inf is not 0 nothing is written.
//
// sgd(master F32[n], gradient F32[n] [, momentum_buffer F32[n]] [, compute[n]],
//     learning_rate F32[8], gradient_scale F64 scalar, found_inf I32 scalar)
//     -> master [, momentum_buffer] [, compute]      (in place)
//   Attributes: segments, group, has_momentum, has_compute; per optimizer group
//   the doubles weight_decay_g and, with has_momentum, momentum_g.
//     d = gradient * [gradient_scale] + [weight_decay] * master
//     with momentum: buffer = buffer * [momentum] + d; d = buffer
//     master = master - [lr] * d
//   (torch.optim.SGD without dampening; the buffer starts at zero.)
//
// advance_state(optimizer_step I64 scalar, beta1_power F64[8],
//               beta2_power F64[8], found_inf I32 scalar)
//     -> optimizer_step, beta1_power, beta2_power    (in place)
//   Attributes: beta1_g, beta2_g; a group without them keeps its powers.
//   optimizer_step + 1 and powers * beta, unless found_inf.
#ifndef KERNELS_OPTIMIZER_OPTIMIZER_H_
#define KERNELS_OPTIMIZER_OPTIMIZER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> OptimizerOps();
absl::Span<const KernelDef> OptimizerReferenceKernels();
absl::Span<const KernelDef> OptimizerCpuKernels();
absl::Span<const KernelDef> OptimizerCudaKernels();

// Elements [begin, end) of a shard, of one optimizer group.
struct ShardRange {
  int64_t begin = 0;
  int64_t end = 0;
  int group = 0;

  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// The parts of `segments` that lie in this rank's shard of n elements, in
// shard coordinates, empty ones left out. InvalidArgument when a segment ends
// behind n * group_size.
absl::StatusOr<std::vector<ShardRange>> ClipSegments(
    absl::Span<const int64_t> segments, int64_t n, int rank, int group_size);

// The double `<name>_<group>`, for example weight_decay_0.
double GroupAttribute(const Attributes& attributes, absl::string_view name,
                      int group, double otherwise = 0);

}  // namespace shardgraph

#endif  // KERNELS_OPTIMIZER_OPTIMIZER_H_
