#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/optimizer/optimizer.h"
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

template <typename T>
Prepared Accumulate(const KernelContext& context) {
  return MakeKernel([destination = context.results[0].as<T>(),
                     contribution = context.operands[1].as<T>(),
                     n = context.results[0].type.num_elements(),
                     micro = context.operands[2].as<int64_t>()](Lane& lane) {
    lane.pool->ParallelFor(
        n, kPointwiseGrain,
        [&, first = *micro == 0](int64_t begin, int64_t end) {
          if (first) {
            std::copy(contribution + begin, contribution + end,
                      destination + begin);
          } else {
            for (int64_t i = begin; i < end; ++i)
              destination[i] += contribution[i];
          }
        });
  });
}

absl::StatusOr<Prepared> PrepareAccumulate(const KernelContext& context) {
  return context.results[0].type.dtype == DType::kF64
             ? Accumulate<double>(context)
             : Accumulate<float>(context);
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
                     gradient = context.operands[0].as<float>(),
                     sum = context.results[0].as<double>(),
                     partial = context.workspace.as<float>(),
                     offset = context.rank * n](Lane& lane) {
    const int64_t first = offset / kBlock;
    const int64_t blocks = n == 0 ? 0 : (offset + n - 1) / kBlock - first + 1;
    lane.pool->ParallelFor(blocks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        WideSum squares;
        ForEachRange(ranges, (first + b) * kBlock - offset,
                     (first + b + 1) * kBlock - offset,
                     [&](int64_t from, int64_t to, int) {
                       const float* g = gradient + from;
                       squares.Add(to - from,
                                   [&](int64_t i) { return g[i] * g[i]; });
                     });
        partial[b] = squares.Total();
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

// Calls f with the type of the compute copy: void when there is none.
template <typename F>
Prepared DispatchCompute(bool has_compute, const Tensor& compute, F f) {
  if (!has_compute) return f(std::type_identity<void>());
  if (compute.type.dtype == DType::kF16)
    return f(std::type_identity<Float16>());
  return f(std::type_identity<BFloat16>());
}

// The bracketed scalars of one group, see optimizer.h.
struct AdamWScalars {
  float gradient_scale, decay, one_minus_beta1, beta2, one_minus_beta2,
      root_correction2, epsilon, step;
};

template <typename C>
void AdamWRange(const AdamWScalars& s, int64_t begin, int64_t end,
                float* __restrict p, const float* __restrict g,
                float* __restrict m, float* __restrict v,
                C* __restrict compute) {
  for (int64_t i = begin; i < end; ++i) {
    const float d = g[i] * s.gradient_scale;
    const float average = m[i] + s.one_minus_beta1 * (d - m[i]);
    const float square = v[i] * s.beta2 + s.one_minus_beta2 * d * d;
    const float denominator =
        std::sqrt(square) / s.root_correction2 + s.epsilon;
    const float updated = p[i] * s.decay + s.step * average / denominator;
    m[i] = average;
    v[i] = square;
    p[i] = updated;
    if constexpr (!std::is_void_v<C>) compute[i] = C(updated);
  }
}

absl::StatusOr<Prepared> PrepareAdamW(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(std::vector<ShardRange> ranges, RangesOf(context));
  const Attributes& attributes = *context.attributes;
  const bool has_compute = attributes.Int("has_compute") != 0;
  const absl::Span<const Tensor> operands = context.operands;
  const absl::Span<const Tensor> scalars = operands.subspan(4 + has_compute);
  return DispatchCompute(
      has_compute, operands[4], [&]<typename C>(std::type_identity<C>) {
        return MakeKernel(
            [ranges = std::move(ranges), n = operands[0].type.dim(0),
             p = operands[0].as<float>(), g = operands[1].as<float>(),
             m = operands[2].as<float>(), v = operands[3].as<float>(),
             compute = operands[4].as<C>(),
             learning_rate = scalars[0].as<float>(),
             beta1_power = scalars[1].as<double>(),
             beta2_power = scalars[2].as<double>(),
             gradient_scale = scalars[3].as<double>(),
             found_inf = scalars[4].as<int32_t>(),
             beta1 = GroupConstants(attributes, "beta1"),
             beta2 = GroupConstants(attributes, "beta2"),
             epsilon = GroupConstants(attributes, "epsilon"),
             weight_decay =
                 GroupConstants(attributes, "weight_decay")](Lane& lane) {
              if (*found_inf != 0) return;
              std::array<AdamWScalars, kGroups> s;
              for (int i = 0; i < kGroups; ++i) {
                const double rate = learning_rate[i];
                s[i] = {.gradient_scale = static_cast<float>(*gradient_scale),
                        .decay = static_cast<float>(1 - rate * weight_decay[i]),
                        .one_minus_beta1 = static_cast<float>(1 - beta1[i]),
                        .beta2 = static_cast<float>(beta2[i]),
                        .one_minus_beta2 = static_cast<float>(1 - beta2[i]),
                        .root_correction2 = static_cast<float>(
                            std::sqrt(1 - beta2_power[i] * beta2[i])),
                        .epsilon = static_cast<float>(epsilon[i]),
                        .step = static_cast<float>(
                            -rate / (1 - beta1_power[i] * beta1[i]))};
              }
              lane.pool->ParallelFor(
                  n, kPointwiseGrain, [&](int64_t begin, int64_t end) {
                    ForEachRange(ranges, begin, end,
                                 [&](int64_t from, int64_t to, int group) {
                                   AdamWRange(s[group], from, to, p, g, m, v,
                                              compute);
                                 });
                  });
            });
      });
}

struct SgdScalars {
  float gradient_scale, weight_decay, momentum, rate;
};

template <typename C>
void SgdRange(const SgdScalars& s, int64_t begin, int64_t end, float* p,
              const float* g, float* buffer, C* compute) {
  if (buffer != nullptr) {
    for (int64_t i = begin; i < end; ++i) {
      const float d = g[i] * s.gradient_scale + s.weight_decay * p[i];
      buffer[i] = buffer[i] * s.momentum + d;
    }
    for (int64_t i = begin; i < end; ++i) p[i] -= s.rate * buffer[i];
  } else {
    for (int64_t i = begin; i < end; ++i)
      p[i] -= s.rate * (g[i] * s.gradient_scale + s.weight_decay * p[i]);
  }
  if constexpr (!std::is_void_v<C>) {
    for (int64_t i = begin; i < end; ++i) compute[i] = C(p[i]);
  }
}

absl::StatusOr<Prepared> PrepareSgd(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(std::vector<ShardRange> ranges, RangesOf(context));
  const Attributes& attributes = *context.attributes;
  const bool has_momentum = attributes.Int("has_momentum") != 0;
  const bool has_compute = attributes.Int("has_compute") != 0;
  const absl::Span<const Tensor> operands = context.operands;
  const Tensor& compute = operands[2 + has_momentum];
  const absl::Span<const Tensor> scalars =
      operands.subspan(2 + has_momentum + has_compute);
  return DispatchCompute(
      has_compute, compute, [&]<typename C>(std::type_identity<C>) {
        return MakeKernel(
            [ranges = std::move(ranges), n = operands[0].type.dim(0),
             p = operands[0].as<float>(), g = operands[1].as<float>(),
             buffer = has_momentum ? operands[2].as<float>() : nullptr,
             compute = compute.as<C>(), learning_rate = scalars[0].as<float>(),
             gradient_scale = scalars[1].as<double>(),
             found_inf = scalars[2].as<int32_t>(),
             momentum = GroupConstants(attributes, "momentum"),
             weight_decay =
                 GroupConstants(attributes, "weight_decay")](Lane& lane) {
              if (*found_inf != 0) return;
              lane.pool->ParallelFor(
                  n, kPointwiseGrain, [&](int64_t begin, int64_t end) {
                    ForEachRange(ranges, begin, end,
                                 [&](int64_t from, int64_t to, int group) {
                                   const SgdScalars s = {
                                       static_cast<float>(*gradient_scale),
                                       static_cast<float>(weight_decay[group]),
                                       static_cast<float>(momentum[group]),
                                       learning_rate[group]};
                                   SgdRange(s, from, to, p, g, buffer, compute);
                                 });
                  });
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
