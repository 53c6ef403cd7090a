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
#include "kernels/random/random.h"
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
  return MakeKernel(
      [sums = context.operands[0].as<double>(),
       count = context.operands[0].type.dim(0),
       token_count = context.operands[1].as<double>(),
       nominal_tokens = context.operands[2].as<double>(),
       loss_scale = context.operands[3].as<float>(),
       gradient_norm = context.results[0].as<double>(),
       gradient_scale = context.results[1].as<double>(),
       found_inf = context.results[2].as<int32_t>(),
       stop = context.results[3].as<int32_t>(),
       policy = static_cast<NonFinite>(context.attributes->Int("non_finite")),
       max_norm = context.attributes->Double("max_norm")](Lane&) {
        double sum = 0;
        for (int64_t i = 0; i < count; ++i) sum += sums[i];
        const double average =
            *token_count == 0 ? 0
                              : *nominal_tokens / *token_count / *loss_scale;
        const double norm = std::sqrt(sum) * average;
        const double clip =
            max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
        const bool bad = !std::isfinite(sum);
        if (bad && policy == NonFinite::kStop) *stop = 1;
        *found_inf = policy != NonFinite::kIgnore && (bad || *stop != 0);
        *gradient_norm = norm;
        *gradient_scale = *found_inf ? 0.0 : average * clip;
      });
}

absl::StatusOr<Prepared> PrepareUpdateLossScale(const KernelContext& context) {
  return MakeKernel([loss_scale = context.results[0].as<float>(),
                     counter = context.results[1].as<int32_t>(),
                     found_inf = context.operands[2].as<int32_t>(),
                     growth = context.attributes->Double("growth"),
                     backoff = context.attributes->Double("backoff"),
                     interval = context.attributes->Int("interval")](Lane&) {
    if (*found_inf != 0) {
      *loss_scale = static_cast<float>(*loss_scale * backoff);
      *counter = 0;
    } else if (++*counter == interval) {
      const float grown = static_cast<float>(*loss_scale * growth);
      if (std::isfinite(grown)) *loss_scale = grown;
      *counter = 0;
    }
  });
}

// An update as all optimizers have it: the shards and the scalars of StepState.
struct Update {
  OptimizerRun run;
  std::vector<ShardRange> ranges;
  absl::Span<const Tensor> scalars;
  const int64_t* run_step = nullptr;  // where moments are rounded
  uint64_t seed = 0;
  uint64_t key = 0;

  // F16 is compiled for the baseline alone.
  CpuTarget target() const {
    return run.compute != nullptr && run.compute_type == ElementType::kF16
               ? CpuTarget::kBaseline
               : BestCpuTarget();
  }

  // Calls update(part, group) for all elements of the ranges.
  template <typename Body>
  void ForEach(ThreadPool& pool, Body body) const {
    OptimizerRun whole = run;
    if (run_step != nullptr) {
      const RandomKey random =
          MakeRandomKey(seed, key, static_cast<uint64_t>(*run_step));
      whole.key = random.key;
      whole.stream = random.stream;
    }
    pool.ParallelFor(run.n, kPointwiseGrain, [&](int64_t begin, int64_t end) {
      ForEachRange(ranges, begin, end,
                   [&](int64_t from, int64_t to, int group) {
                     body(Part(whole, from, to), group);
                   });
    });
  }

 private:
  // What `run` says of the elements [begin, end).
  static OptimizerRun Part(const OptimizerRun& run, int64_t begin,
                           int64_t end) {
    const auto from = [begin](void* data, int64_t size) -> void* {
      return data == nullptr ? nullptr
                             : static_cast<char*>(data) + begin * size;
    };
    OptimizerRun part = run;
    part.n = end - begin;
    part.element = run.element + begin;
    part.master = run.master + begin;
    part.gradient = run.gradient + begin;
    for (void*& moment : part.moments)
      moment = from(moment, run.rounds ? 2 : 4);
    part.compute = from(run.compute, SizeOfElement(run.compute_type));
    return part;
  }
};

absl::StatusOr<Update> UpdateOf(const KernelContext& context) {
  Update update;
  SG_ASSIGN_OR_RETURN(update.ranges, RangesOf(context));
  const absl::Span<const Tensor> operands = context.operands;
  const UpdatePlaces places =
      PlacesOf(context.op->name, *context.attributes, operands[2].type);
  OptimizerRun& run = update.run;
  run.n = operands[0].type.dim(0);
  run.master = operands[0].as<float>();
  run.gradient = operands[1].as<float>();
  for (int i = 0; i < places.moments; ++i)
    run.moments[i] = operands[2 + i].data;
  if (places.has_compute) {
    const Tensor& compute = operands[places.compute()];
    run.compute = compute.data;
    run.compute_type = ElementTypeOf(compute.type.dtype);
  }
  update.scalars = operands.subspan(places.scalars());
  if (places.rounds) {
    run.rounds = true;
    run.element = static_cast<uint64_t>(context.rank * run.n);
    update.run_step = operands[operands.size() - 1].as<int64_t>();
    update.seed = static_cast<uint64_t>(context.attributes->Int("seed"));
    update.key = static_cast<uint64_t>(context.attributes->Int("key"));
  }
  return update;
}

absl::StatusOr<Prepared> PrepareAdamW(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(const Update update, UpdateOf(context));
  const Attributes& attributes = *context.attributes;
  return MakeKernel([update,
                     adamw = ForTarget(update.target(), &baseline::AdamW,
                                       &avx2::AdamW, &avx512::AdamW),
                     learning_rate = update.scalars[0].as<float>(),
                     beta1_power = update.scalars[1].as<double>(),
                     beta2_power = update.scalars[2].as<double>(),
                     gradient_scale = update.scalars[3].as<double>(),
                     found_inf = update.scalars[4].as<int32_t>(),
                     beta1 = GroupConstants(attributes, "beta1"),
                     beta2 = GroupConstants(attributes, "beta2"),
                     epsilon = GroupConstants(attributes, "epsilon"),
                     weight_decay = GroupConstants(attributes, "weight_decay"),
                     l2 = attributes.Int("l2") != 0](Lane& lane) {
    if (*found_inf != 0) return;
    std::array<AdamWScalars, kGroups> s;
    for (int i = 0; i < kGroups; ++i) {
      const double rate = learning_rate[i];
      s[i] = {
          .gradient_scale = static_cast<float>(*gradient_scale),
          .l2 = l2 ? static_cast<float>(weight_decay[i]) : 0.0f,
          .decay = l2 ? 1.0f : static_cast<float>(1 - rate * weight_decay[i]),
          .one_minus_beta1 = static_cast<float>(1 - beta1[i]),
          .beta2 = static_cast<float>(beta2[i]),
          .one_minus_beta2 = static_cast<float>(1 - beta2[i]),
          .root_correction2 =
              static_cast<float>(std::sqrt(1 - beta2_power[i] * beta2[i])),
          .epsilon = static_cast<float>(epsilon[i]),
          .step = static_cast<float>(-rate / (1 - beta1_power[i] * beta1[i]))};
    }
    update.ForEach(*lane.pool, [&](const OptimizerRun& part, int group) {
      adamw(s[group], part);
    });
  });
}

absl::StatusOr<Prepared> PrepareSgd(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(const Update update, UpdateOf(context));
  const Attributes& attributes = *context.attributes;
  return MakeKernel(
      [update,
       sgd =
           ForTarget(update.target(), &baseline::Sgd, &avx2::Sgd, &avx512::Sgd),
       learning_rate = update.scalars[0].as<float>(),
       gradient_scale = update.scalars[1].as<double>(),
       found_inf = update.scalars[2].as<int32_t>(),
       momentum = GroupConstants(attributes, "momentum"),
       weight_decay = GroupConstants(attributes, "weight_decay")](Lane& lane) {
        if (*found_inf != 0) return;
        update.ForEach(*lane.pool, [&](const OptimizerRun& part, int group) {
          sgd({static_cast<float>(*gradient_scale),
               static_cast<float>(weight_decay[group]),
               static_cast<float>(momentum[group]), learning_rate[group]},
              part);
        });
      });
}

absl::StatusOr<Prepared> PrepareLion(const KernelContext& context) {
  SG_ASSIGN_OR_RETURN(const Update update, UpdateOf(context));
  const Attributes& attributes = *context.attributes;
  return MakeKernel(
      [update,
       lion = ForTarget(update.target(), &baseline::Lion, &avx2::Lion,
                        &avx512::Lion),
       learning_rate = update.scalars[0].as<float>(),
       gradient_scale = update.scalars[1].as<double>(),
       found_inf = update.scalars[2].as<int32_t>(),
       beta1 = GroupConstants(attributes, "beta1"),
       beta2 = GroupConstants(attributes, "beta2"),
       weight_decay = GroupConstants(attributes, "weight_decay")](Lane& lane) {
        if (*found_inf != 0) return;
        update.ForEach(*lane.pool, [&](const OptimizerRun& part, int group) {
          const double rate = learning_rate[group];
          lion({.gradient_scale = static_cast<float>(*gradient_scale),
                .decay = static_cast<float>(1 - rate * weight_decay[group]),
                .rate = learning_rate[group],
                .beta1 = static_cast<float>(beta1[group]),
                .one_minus_beta1 = static_cast<float>(1 - beta1[group]),
                .beta2 = static_cast<float>(beta2[group]),
                .one_minus_beta2 = static_cast<float>(1 - beta2[group])},
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
      {.op = "update_loss_scale", .prepare = PrepareUpdateLossScale},
      {.op = "adamw", .prepare = PrepareAdamW},
      {.op = "sgd", .prepare = PrepareSgd},
      {.op = "lion", .prepare = PrepareLion},
      {.op = "advance_state", .prepare = PrepareAdvanceState},
  };
  return kernels;
}

}  // namespace shardgraph
