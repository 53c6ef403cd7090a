#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/target.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/optimizer/optimizer_run.h"
#include "kernels/pointwise/pointwise_run.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

constexpr int kGroups = StepState::kMaxGroups;
constexpr int64_t kBlock = 4096;  // elements of a partial sum of squares

absl::StatusOr<std::vector<ShardRange>> RangesOf(const KernelContext& context) {
  return ClipSegments(context.attributes->Ints("segments"),
                      context.operands[0].type.dim(0), context.rank,
                      context.group_size);
}

// Calls body(begin, end, group) for what the ranges cover of [begin, end).
template <typename Body>
void ForEachRange(const std::vector<ShardRange>& ranges, int64_t begin,
                  int64_t end, Body body) {
  auto range =
      std::partition_point(ranges.begin(), ranges.end(),
                           [&](const ShardRange& r) { return r.end <= begin; });
  for (; range != ranges.end() && range->begin < end; ++range) {
    body(std::max(begin, range->begin), std::min(end, range->end),
         range->group);
  }
}

// The attribute `name` of every group, 0 where it is absent.
std::array<double, kGroups> GroupConstants(const Attributes& attributes,
                                           absl::string_view name,
                                           double otherwise = 0) {
  std::array<double, kGroups> values;
  for (int g = 0; g < kGroups; ++g)
    values[g] = GroupAttribute(attributes, name, g, otherwise);
  return values;
}

Prepared AccumulateF64(const KernelContext& context) {
  return MakeKernel([destination = context.results[0].as<double>(),
                     contribution = context.operands[1].as<double>(),
                     n = context.results[0].type.num_elements(),
                     micro = context.operands[2].as<int64_t>()](Lane& lane) {
    lane.pool->ParallelFor(
        n, kPointwiseGrain,
        [&, first = *micro == 0](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            destination[i] =
                first ? contribution[i] : destination[i] + contribution[i];
        });
  });
}

absl::StatusOr<Prepared> PrepareAccumulate(const KernelContext& context) {
  if (context.results[0].type.dtype == DType::kF64)
    return AccumulateF64(context);
  return MakeKernel([run = SG_BEST_CPU_TARGET(RunPointwise),
                     destination = context.results[0].as<float>(),
                     contribution = context.operands[1].as<float>(),
                     n = context.results[0].type.num_elements(),
                     micro = context.operands[2].as<int64_t>()](Lane& lane) {
    PointwiseRun whole;
    whole.function = *micro == 0 ? Pointwise::kCast : Pointwise::kCastAdd;
    lane.pool->ParallelFor(n, kPointwiseGrain, [&](int64_t begin, int64_t end) {
      PointwiseRun part = whole;
      part.n = end - begin;
      part.in[0] = contribution + begin;
      part.out[0] = destination + begin;
      run(part);
    });
  });
}

absl::StatusOr<Prepared> PrepareSumPieces(const KernelContext& context) {
  return MakeKernel([run = SG_BEST_CPU_TARGET(RunPointwise),
                     pieces =
                         static_cast<const char*>(context.operands[0].data),
                     sum = context.results[0].as<float>(),
                     type = ElementTypeOf(context.operands[0].type.dtype),
                     n = context.results[0].type.num_elements(),
                     size = context.attributes->Int("size")](Lane& lane) {
    lane.pool->ParallelFor(n, kPointwiseGrain, [&](int64_t begin, int64_t end) {
      for (int64_t piece = 0; piece < size; ++piece) {
        PointwiseRun part;
        part.function = piece == 0 ? Pointwise::kCast : Pointwise::kCastAdd;
        part.type = type;
        part.n = end - begin;
        part.in[0] = pieces + (piece * n + begin) * SizeOfElement(type);
        part.out[0] = sum + begin;
        run(part);
      }
    });
  });
}

// A float for each block that a shard of n elements may touch.
int64_t SumOfSquaresWorkspace(const Attributes&,
                              absl::Span<const TensorType> operands,
                              absl::Span<const TensorType>) {
  return (operands[0].dim(0) / kBlock + 2) *
         static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<Prepared> PrepareSumOfSquares(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(std::vector<ShardRange> ranges, RangesOf(context));
  const int64_t n = context.operands[0].type.dim(0);
  return MakeKernel([ranges = std::move(ranges), n,
                     add_squares = SG_BEST_CPU_TARGET(AddSquares),
                     gradient = context.operands[0].as<float>(),
                     sum = context.results[0].as<double>(),
                     partial = context.workspace.as<float>(),
                     offset = context.rank * n](Lane& lane) {
    const int64_t first = offset / kBlock;
    const int64_t blocks = n == 0 ? 0 : (offset + n - 1) / kBlock - first + 1;
    lane.pool->ParallelFor(blocks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        float sums[kSquareSums] = {};
        ForEachRange(ranges, (first + b) * kBlock - offset,
                     (first + b + 1) * kBlock - offset,
                     [&](int64_t from, int64_t to, int) {
                       add_squares(gradient + from, to - from, sums);
                     });
        for (int half = kSquareSums / 2; half > 0; half /= 2) {
          for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
        }
        partial[b] = sums[0];
      }
    });
    double total = 0;
    for (int64_t b = 0; b < blocks; ++b) total += partial[b];
    *sum = total;
  });
}

absl::StatusOr<Prepared> PrepareFinishGradients(const KernelContext& context) {
  return MakeKernel([sums = context.operands[0].as<double>(),
                     count = context.operands[0].type.dim(0),
                     token_count = context.operands[1].as<double>(),
                     nominal_tokens = context.operands[2].as<double>(),
                     loss_scale = context.operands[3].as<float>(),
                     gradient_norm = context.results[0].as<double>(),
                     gradient_scale = context.results[1].as<double>(),
                     found_inf = context.results[2].as<int32_t>(),
                     max_norm = context.attributes->Double("max_norm")](Lane&) {
    double sum = 0;
    for (int64_t i = 0; i < count; ++i) sum += sums[i];
    const double average =
        *token_count == 0 ? 0 : *nominal_tokens / *token_count / *loss_scale;
    const double norm = std::sqrt(sum) * average;
    const double clip =
        max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
    *found_inf = !std::isfinite(sum);
    *gradient_norm = norm;
    *gradient_scale = *found_inf ? 0.0 : average * clip;
  });
}

// The target for a compute copy of this type.
CpuTarget TargetFor(const OptimizerRun& run) {
  return run.compute != nullptr && run.compute_type == ElementType::kF16
             ? CpuTarget::kBaseline
             : BestCpuTarget();
}

void SetCompute(const Tensor& compute, OptimizerRun* run) {
  run->compute = compute.data;
  run->compute_type = ElementTypeOf(compute.type.dtype);
}

// What `run` says of the elements [begin, end).
OptimizerRun Part(const OptimizerRun& run, int64_t begin, int64_t end) {
  const auto from = [begin](auto* data) {
    return data == nullptr ? nullptr : data + begin;
  };
  OptimizerRun part = run;
  part.n = end - begin;
  part.master = from(run.master);
  part.gradient = from(run.gradient);
  part.exp_avg = from(run.exp_avg);
  part.exp_avg_sq = from(run.exp_avg_sq);
  part.momentum = from(run.momentum);
  if (run.compute != nullptr)
    part.compute = static_cast<char*>(run.compute) +
                   begin * SizeOfElement(run.compute_type);
  return part;
}

// Calls update(part, group) for all elements of the ranges.
template <typename Update>
void UpdateRanges(const std::vector<ShardRange>& ranges,
                  const OptimizerRun& run, ThreadPool& pool, Update update) {
  pool.ParallelFor(run.n, kPointwiseGrain, [&](int64_t begin, int64_t end) {
    ForEachRange(ranges, begin, end, [&](int64_t from, int64_t to, int group) {
      update(Part(run, from, to), group);
    });
  });
}

absl::StatusOr<Prepared> PrepareAdamW(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(std::vector<ShardRange> ranges, RangesOf(context));
  const Attributes& attributes = *context.attributes;
  const bool has_compute = attributes.Int("has_compute") != 0;
  const absl::Span<const Tensor> operands = context.operands;
  const absl::Span<const Tensor> scalars = operands.subspan(4 + has_compute);
  OptimizerRun run;
  run.n = operands[0].type.dim(0);
  run.master = operands[0].as<float>();
  run.gradient = operands[1].as<float>();
  run.exp_avg = operands[2].as<float>();
  run.exp_avg_sq = operands[3].as<float>();
  if (has_compute) SetCompute(operands[4], &run);
  return MakeKernel([ranges = std::move(ranges), run,
                     adamw = ForTarget(TargetFor(run), &baseline::AdamW,
                                       &avx2::AdamW, &avx512::AdamW),
                     learning_rate = scalars[0].as<float>(),
                     beta1_power = scalars[1].as<double>(),
                     beta2_power = scalars[2].as<double>(),
                     gradient_scale = scalars[3].as<double>(),
                     found_inf = scalars[4].as<int32_t>(),
                     beta1 = GroupConstants(attributes, "beta1"),
                     beta2 = GroupConstants(attributes, "beta2"),
                     epsilon = GroupConstants(attributes, "epsilon"),
                     weight_decay = GroupConstants(attributes, "weight_decay")](
                        Lane& lane) {
    if (*found_inf != 0) return;
    std::array<AdamWScalars, kGroups> s;
    for (int i = 0; i < kGroups; ++i) {
      const double rate = learning_rate[i];
      s[i] = {
          .gradient_scale = static_cast<float>(*gradient_scale),
          .decay = static_cast<float>(1 - rate * weight_decay[i]),
          .one_minus_beta1 = static_cast<float>(1 - beta1[i]),
          .beta2 = static_cast<float>(beta2[i]),
          .one_minus_beta2 = static_cast<float>(1 - beta2[i]),
          .root_correction2 =
              static_cast<float>(std::sqrt(1 - beta2_power[i] * beta2[i])),
          .epsilon = static_cast<float>(epsilon[i]),
          .step = static_cast<float>(-rate / (1 - beta1_power[i] * beta1[i]))};
    }
    UpdateRanges(
        ranges, run, *lane.pool,
        [&](const OptimizerRun& part, int group) { adamw(s[group], part); });
  });
}

absl::StatusOr<Prepared> PrepareSgd(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(std::vector<ShardRange> ranges, RangesOf(context));
  const Attributes& attributes = *context.attributes;
  const bool has_momentum = attributes.Int("has_momentum") != 0;
  const bool has_compute = attributes.Int("has_compute") != 0;
  const absl::Span<const Tensor> operands = context.operands;
  const absl::Span<const Tensor> scalars =
      operands.subspan(2 + has_momentum + has_compute);
  OptimizerRun run;
  run.n = operands[0].type.dim(0);
  run.master = operands[0].as<float>();
  run.gradient = operands[1].as<float>();
  if (has_momentum) run.momentum = operands[2].as<float>();
  if (has_compute) SetCompute(operands[2 + has_momentum], &run);
  return MakeKernel(
      [ranges = std::move(ranges), run,
       sgd =
           ForTarget(TargetFor(run), &baseline::Sgd, &avx2::Sgd, &avx512::Sgd),
       learning_rate = scalars[0].as<float>(),
       gradient_scale = scalars[1].as<double>(),
       found_inf = scalars[2].as<int32_t>(),
       momentum = GroupConstants(attributes, "momentum"),
       weight_decay = GroupConstants(attributes, "weight_decay")](Lane& lane) {
        if (*found_inf != 0) return;
        UpdateRanges(
            ranges, run, *lane.pool, [&](const OptimizerRun& part, int group) {
              sgd({static_cast<float>(*gradient_scale),
                   static_cast<float>(weight_decay[group]),
                   static_cast<float>(momentum[group]), learning_rate[group]},
                  part);
            });
      });
}

absl::StatusOr<Prepared> PrepareAdvanceState(const KernelContext& context) {
  return MakeKernel(
      [step = context.results[0].as<int64_t>(),
       beta1_power = context.results[1].as<double>(),
       beta2_power = context.results[2].as<double>(),
       found_inf = context.operands[3].as<int32_t>(),
       beta1 = GroupConstants(*context.attributes, "beta1", 1),
       beta2 = GroupConstants(*context.attributes, "beta2", 1)](Lane&) {
        if (*found_inf != 0) return;
        ++*step;
        for (int g = 0; g < kGroups; ++g) {
          beta1_power[g] *= beta1[g];
          beta2_power[g] *= beta2[g];
        }
      });
}

}  // namespace

absl::Span<const KernelDef> OptimizerCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "accumulate", .prepare = PrepareAccumulate},
      {.op = "sum_pieces", .prepare = PrepareSumPieces},
      {.op = "sum_of_squares",
       .workspace = SumOfSquaresWorkspace,
       .prepare = PrepareSumOfSquares},
      {.op = "finish_gradients", .prepare = PrepareFinishGradients},
      {.op = "adamw", .prepare = PrepareAdamW},
      {.op = "sgd", .prepare = PrepareSgd},
      {.op = "advance_state", .prepare = PrepareAdvanceState},
  };
  return kernels;
}

}  // namespace shardgraph
