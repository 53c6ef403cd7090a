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
//                  loss_scale F32, stop I32)
//     -> gradient_norm F64, gradient_scale F64, found_inf I32, stop   (scalars)
//   stop in place. Attributes: max_norm (double; 0: no clipping), non_finite
//   (kSkip if absent, kStop, kIgnore).
//   sum = sums added in order; average = nominal_tokens / token_count /
//   loss_scale, or 0 when token_count is 0; gradient_norm = sqrt(sum) *
//   average; clip = max_norm > 0 ? min(1, max_norm / (gradient_norm + 1e-6))
//   : 1; gradient_scale = average * clip, or 0 with found_inf.
//   found_inf = sum is not finite; with kStop it also sets stop, and is set
//   itself wherever stop is; with kIgnore it is 0.
//   An update of finite gradients whose squares leave FP32 (about 1e19) counts
//   as not finite too.
//
// update_loss_scale(loss_scale F32, growth_counter I32, found_inf I32)
//     -> loss_scale, growth_counter                  (scalars, in place)
//   Attributes: growth, backoff (doubles), interval. As torch.amp.GradScaler:
//   with found_inf the scale is times backoff and the counter 0; otherwise the
//   counter is one more, and at interval the scale is times growth, where that
//   is finite, and the counter 0.
//
// Updates: adamw, sgd and lion
//   In place, one pass over the shard, FP32 for each element; the scalars in
//   brackets are computed in FP64 and rounded to FP32 once. Operands are
//     master F32[n], gradient F32[n], moments [n] ..., [compute[n],]
//     scalars of StepState ..., [run_step I64 scalar]
//   and results the master, the moments and the compute copy.
//   Attributes: segments, group, has_compute (compute is BF16 or F16, the
//   master rounded), and constants as doubles NAME_g for each optimizer group g
//   in segments. When found_inf is not 0 nothing is written.
//   Moments are all F32, or all BF16: then the last operand is run_step, and
//   attributes seed and key say how they are rounded: with w = number e of the
//   stream MakeRandomKey(seed, key, run_step) (kernels/random/random.h), for
//   element e of the flat parameter, a moment becomes
//   StochasticBFloat16(FP32 value, w & 0xffff), the second moment
//   StochasticBFloat16(FP32 value, w >> 16). In the same step the FP32 values
//   are what moves the master.
//
// adamw(master, gradient, exp_avg, exp_avg_sq [, compute],
//       learning_rate F32[8], beta1_power F64[8], beta2_power F64[8],
//       gradient_scale F64 scalar, found_inf I32 scalar [, run_step])
//     -> master, exp_avg, exp_avg_sq [, compute]
//   Attributes: l2, and per group beta1, beta2, epsilon, weight_decay.
//   torch.optim.AdamW's order of operations, or with l2 torch.optim.Adam's,
//   whose decay goes through the moments:
//     d = gradient * [gradient_scale]
//     l2: d = d + [weight_decay] * master
//     p = master * [1 - lr * weight_decay]           (l2: p = master)
//     m = m + [1 - beta1] * (d - m)
//     v = v * [beta2] + [1 - beta2] * d * d
//     denom = sqrt(v) / [sqrt(1 - beta2_power * beta2)] + [epsilon]
//     p = p + [-lr / (1 - beta1_power * beta1)] * m / denom
//   beta powers are those before this step.
//
// sgd(master, gradient [, momentum_buffer] [, compute], learning_rate F32[8],
//     gradient_scale F64 scalar, found_inf I32 scalar [, run_step])
//     -> master [, momentum_buffer] [, compute]
//   Attributes: has_momentum, and per group weight_decay and, with
//   has_momentum, momentum.
//     d = gradient * [gradient_scale] + [weight_decay] * master
//     with momentum: buffer = buffer * [momentum] + d; d = buffer
//     master = master - [lr] * d
//   (torch.optim.SGD without dampening; the buffer starts at zero.)
//
// lion(master, gradient, exp_avg [, compute], learning_rate F32[8],
//      gradient_scale F64 scalar, found_inf I32 scalar [, run_step])
//     -> master, exp_avg [, compute]
//   Attributes: per group beta1, beta2, weight_decay.
//     d = gradient * [gradient_scale]
//     c = m * [beta1] + [1 - beta1] * d
//     p = master * [1 - lr * weight_decay] - [lr] * sign(c)
//     m = m * [beta2] + [1 - beta2] * d
//   sign(0) is 0. (Chen et al., "Symbolic Discovery of Optimization
//   Algorithms", 2023, algorithm 2.)
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

// Values of the attribute non_finite.
enum class NonFinite : int64_t { kSkip, kStop, kIgnore };

// Where an update has its operands; shards come first.
struct UpdatePlaces {
  int moments = 0;  // they begin at operand 2
  bool has_compute = false;
  bool rounds = false;  // moments are BF16; the last operand is run_step

  int compute() const { return 2 + moments; }
  int scalars() const { return 2 + moments + has_compute; }
  // Of the results: master, moments, compute.
  int compute_result() const { return 1 + moments; }
};
// Of adamw, sgd and lion. `moment` is the type of operand 2 (of no meaning
// where there are no moments).
UpdatePlaces PlacesOf(absl::string_view op, const Attributes& attributes,
                      const TensorType& moment);

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
