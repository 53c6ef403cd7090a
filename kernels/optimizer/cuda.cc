#include "kernels/optimizer/cuda.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/device_table.h"
#include "kernels/cuda/prepare.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;
using RangeTable = cuda::DeviceTable<cuda::UpdateRange>;

static_assert(cuda::kOptimizerGroups == StepState::kMaxGroups);

// The attribute `name` of every group into `values`.
void GroupConstants(const Attributes& attributes, absl::string_view name,
                    double otherwise, double* values) {
  for (int g = 0; g < cuda::kOptimizerGroups; ++g)
    values[g] = GroupAttribute(attributes, name, g, otherwise);
}

// The ranges of this rank's shard in device memory.
absl::StatusOr<RangeTable> RangesOf(const KernelContext& context,
                                    cuda::UpdateRanges* ranges) {
  SG_ASSIGN_OR_RETURN(const std::vector<ShardRange> clipped,
                      ClipSegments(context.attributes->Ints("segments"),
                                   context.operands[0].type.dim(0),
                                   context.rank, context.group_size));
  std::vector<cuda::UpdateRange> table;
  for (const ShardRange& range : clipped) {
    table.push_back({range.begin, range.end, ranges->tiles, range.group});
    const int64_t begin = range.begin / 4 * 4;
    ranges->tiles +=
        (range.end - begin + cuda::kUpdateTile - 1) / cuda::kUpdateTile;
  }
  SG_ASSIGN_OR_RETURN(RangeTable memory, RangeTable::Make(table));
  ranges->ranges = memory.data();
  ranges->count = memory.size();
  return memory;
}

// `scalars`: those of StepState.
absl::StatusOr<RangeTable> SetUpdate(const KernelContext& context,
                                     cuda::UpdateLaunch* update,
                                     absl::Span<const Tensor>* scalars) {
  SG_ASSIGN_OR_RETURN(RangeTable table, RangesOf(context, &update->ranges));
  const absl::Span<const Tensor> operands = context.operands;
  const Attributes& attributes = *context.attributes;
  const UpdatePlaces places =
      PlacesOf(context.op->name, attributes, operands[2].type);
  update->master = operands[0].as<float>();
  update->gradient = operands[1].as<float>();
  for (int i = 0; i < places.moments; ++i)
    update->moments[i] = operands[2 + i].data;
  if (places.has_compute) {
    const Tensor& compute = operands[places.compute()];
    update->compute = compute.data;
    update->compute_type = compute.type.dtype == DType::kF16
                               ? ElementType::kF16
                               : ElementType::kBF16;
  }
  update->vector = true;
  for (int i = 0; i < places.scalars(); ++i)
    update->vector &= cuda::IsAligned(operands[i].data);
  if (places.rounds) {
    update->rounds = true;
    update->seed = static_cast<uint64_t>(attributes.Int("seed"));
    update->key = static_cast<uint64_t>(attributes.Int("key"));
    update->run_step = operands[operands.size() - 1].as<int64_t>();
    update->offset = context.rank * operands[0].type.dim(0);
  }
  GroupConstants(attributes, "weight_decay", 0, update->weight_decay);
  *scalars = operands.subspan(places.scalars());
  update->learning_rate = (*scalars)[0].as<float>();
  return table;
}

absl::StatusOr<Prepared> PrepareAdamW(const KernelContext& context) {
  const Attributes& attributes = *context.attributes;
  cuda::AdamWLaunch launch;
  absl::Span<const Tensor> scalars;
  SG_ASSIGN_OR_RETURN(RangeTable table,
                      SetUpdate(context, &launch.update, &scalars));
  launch.beta1_power = scalars[1].as<double>();
  launch.beta2_power = scalars[2].as<double>();
  launch.update.gradient_scale = scalars[3].as<double>();
  launch.update.found_inf = scalars[4].as<int32_t>();
  GroupConstants(attributes, "beta1", 0, launch.beta1);
  GroupConstants(attributes, "beta2", 0, launch.beta2);
  GroupConstants(attributes, "epsilon", 0, launch.epsilon);
  launch.l2 = attributes.Int("l2") != 0;
  return cuda::MakeCudaKernel("adamw", [launch, table](cudaStream_t stream) {
    return LaunchAdamW(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareSgd(const KernelContext& context) {
  cuda::SgdLaunch launch;
  absl::Span<const Tensor> scalars;
  SG_ASSIGN_OR_RETURN(RangeTable table,
                      SetUpdate(context, &launch.update, &scalars));
  launch.update.gradient_scale = scalars[1].as<double>();
  launch.update.found_inf = scalars[2].as<int32_t>();
  GroupConstants(*context.attributes, "momentum", 0, launch.momentum);
  return cuda::MakeCudaKernel("sgd", [launch, table](cudaStream_t stream) {
    return LaunchSgd(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareLion(const KernelContext& context) {
  cuda::LionLaunch launch;
  absl::Span<const Tensor> scalars;
  SG_ASSIGN_OR_RETURN(RangeTable table,
                      SetUpdate(context, &launch.update, &scalars));
  launch.update.gradient_scale = scalars[1].as<double>();
  launch.update.found_inf = scalars[2].as<int32_t>();
  GroupConstants(*context.attributes, "beta1", 0, launch.beta1);
  GroupConstants(*context.attributes, "beta2", 0, launch.beta2);
  return cuda::MakeCudaKernel("lion", [launch, table](cudaStream_t stream) {
    return LaunchLion(launch, stream);
  });
}

// A float for each block that a shard of n elements may touch.
int64_t SumOfSquaresWorkspace(const Attributes&,
                              absl::Span<const TensorType> operands,
                              absl::Span<const TensorType>) {
  return (operands[0].dim(0) / cuda::kSquaresBlock + 2) *
         static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<Prepared> PrepareSumOfSquares(const KernelContext& context) {
  cuda::SumOfSquaresLaunch launch;
  SG_ASSIGN_OR_RETURN(RangeTable table, RangesOf(context, &launch.ranges));
  launch.gradient = context.operands[0].as<float>();
  launch.n = context.operands[0].type.dim(0);
  launch.offset = context.rank * launch.n;
  launch.partial = context.workspace.as<float>();
  launch.sum = context.results[0].as<double>();
  return cuda::MakeCudaKernel("sum_of_squares",
                              [launch, table](cudaStream_t stream) {
                                return LaunchSumOfSquares(launch, stream);
                              });
}

absl::StatusOr<Prepared> PrepareAccumulate(const KernelContext& context) {
  cuda::AccumulateLaunch launch;
  launch.f64 = context.results[0].type.dtype == DType::kF64;
  launch.destination = context.results[0].data;
  launch.contribution = context.operands[1].data;
  launch.n = context.results[0].type.num_elements();
  launch.micro = context.operands[2].as<int64_t>();
  return cuda::MakeCudaKernel("accumulate", [launch](cudaStream_t stream) {
    return LaunchAccumulate(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareSumPieces(const KernelContext& context) {
  cuda::SumPiecesLaunch launch;
  launch.type = cuda::ElementOf(context.operands[0].type);
  launch.pieces = context.operands[0].data;
  launch.sum = context.results[0].as<float>();
  launch.n = context.results[0].type.num_elements();
  launch.size = context.attributes->Int("size");
  return cuda::MakeCudaKernel("sum_pieces", [launch](cudaStream_t stream) {
    return LaunchSumPieces(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareFinishGradients(const KernelContext& context) {
  cuda::FinishGradientsLaunch launch;
  launch.sums = context.operands[0].as<double>();
  launch.count = context.operands[0].type.dim(0);
  launch.token_count = context.operands[1].as<double>();
  launch.nominal_tokens = context.operands[2].as<double>();
  launch.loss_scale = context.operands[3].as<float>();
  launch.gradient_norm = context.results[0].as<double>();
  launch.gradient_scale = context.results[1].as<double>();
  launch.found_inf = context.results[2].as<int32_t>();
  launch.stop = context.results[3].as<int32_t>();
  const auto policy =
      static_cast<NonFinite>(context.attributes->Int("non_finite"));
  launch.stops = policy == NonFinite::kStop;
  launch.ignores = policy == NonFinite::kIgnore;
  launch.max_norm = context.attributes->Double("max_norm");
  return cuda::MakeCudaKernel("finish_gradients",
                              [launch](cudaStream_t stream) {
                                return LaunchFinishGradients(launch, stream);
                              });
}

absl::StatusOr<Prepared> PrepareUpdateLossScale(const KernelContext& context) {
  cuda::UpdateLossScaleLaunch launch;
  launch.loss_scale = context.results[0].as<float>();
  launch.growth_counter = context.results[1].as<int32_t>();
  launch.found_inf = context.operands[2].as<int32_t>();
  launch.growth = context.attributes->Double("growth");
  launch.backoff = context.attributes->Double("backoff");
  launch.interval = context.attributes->Int("interval");
  return cuda::MakeCudaKernel("update_loss_scale",
                              [launch](cudaStream_t stream) {
                                return LaunchUpdateLossScale(launch, stream);
                              });
}

absl::StatusOr<Prepared> PrepareAdvanceState(const KernelContext& context) {
  cuda::AdvanceStateLaunch launch;
  launch.optimizer_step = context.results[0].as<int64_t>();
  launch.beta1_power = context.results[1].as<double>();
  launch.beta2_power = context.results[2].as<double>();
  launch.found_inf = context.operands[3].as<int32_t>();
  GroupConstants(*context.attributes, "beta1", 1, launch.beta1);
  GroupConstants(*context.attributes, "beta2", 1, launch.beta2);
  return cuda::MakeCudaKernel("advance_state", [launch](cudaStream_t stream) {
    return LaunchAdvanceState(launch, stream);
  });
}

}  // namespace

absl::Span<const KernelDef> OptimizerCudaKernels() {
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
