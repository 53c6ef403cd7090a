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

absl::Status SupportsUpdate(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            absl::Span<const TensorType>) {
  if (attributes.Int("has_compute") == 0) return absl::OkStatus();
  for (const TensorType& type : operands) {
    if (type.dtype == DType::kF16) {
      return absl::UnimplementedError(
          "a compute copy in F16; BF16 is supported");
    }
  }
  return absl::OkStatus();
}

// `states` are the shards between gradient and compute copy.
void SetUpdate(const KernelContext& context, int states,
               cuda::UpdateLaunch* update) {
  const absl::Span<const Tensor> operands = context.operands;
  const bool has_compute = context.attributes->Int("has_compute") != 0;
  update->master = operands[0].as<float>();
  update->gradient = operands[1].as<float>();
  if (has_compute) update->compute = operands[2 + states].data;
  update->vector = true;
  for (int i = 0; i < 2 + states + has_compute; ++i)
    update->vector &= cuda::IsAligned(operands[i].data);
  GroupConstants(*context.attributes, "weight_decay", 0, update->weight_decay);
}

absl::StatusOr<Prepared> PrepareAdamW(const KernelContext& context) {
  const Attributes& attributes = *context.attributes;
  cuda::AdamWLaunch launch;
  SG_ASSIGN_OR_RETURN(RangeTable table,
                      RangesOf(context, &launch.update.ranges));
  SetUpdate(context, 2, &launch.update);
  launch.exp_avg = context.operands[2].as<float>();
  launch.exp_avg_sq = context.operands[3].as<float>();
  const absl::Span<const Tensor> scalars =
      context.operands.subspan(launch.update.compute == nullptr ? 4 : 5);
  launch.update.learning_rate = scalars[0].as<float>();
  launch.beta1_power = scalars[1].as<double>();
  launch.beta2_power = scalars[2].as<double>();
  launch.update.gradient_scale = scalars[3].as<double>();
  launch.update.found_inf = scalars[4].as<int32_t>();
  GroupConstants(attributes, "beta1", 0, launch.beta1);
  GroupConstants(attributes, "beta2", 0, launch.beta2);
  GroupConstants(attributes, "epsilon", 0, launch.epsilon);
  return cuda::MakeCudaKernel("adamw", [launch, table](cudaStream_t stream) {
    return LaunchAdamW(launch, stream);
  });
}

absl::StatusOr<Prepared> PrepareSgd(const KernelContext& context) {
  const bool has_momentum = context.attributes->Int("has_momentum") != 0;
  cuda::SgdLaunch launch;
  SG_ASSIGN_OR_RETURN(RangeTable table,
                      RangesOf(context, &launch.update.ranges));
  SetUpdate(context, has_momentum, &launch.update);
  if (has_momentum) launch.momentum_buffer = context.operands[2].as<float>();
  const absl::Span<const Tensor> scalars = context.operands.subspan(
      2 + has_momentum + (launch.update.compute != nullptr));
  launch.update.learning_rate = scalars[0].as<float>();
  launch.update.gradient_scale = scalars[1].as<double>();
  launch.update.found_inf = scalars[2].as<int32_t>();
  GroupConstants(*context.attributes, "momentum", 0, launch.momentum);
  return cuda::MakeCudaKernel("sgd", [launch, table](cudaStream_t stream) {
    return LaunchSgd(launch, stream);
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
  launch.max_norm = context.attributes->Double("max_norm");
  return cuda::MakeCudaKernel("finish_gradients",
                              [launch](cudaStream_t stream) {
                                return LaunchFinishGradients(launch, stream);
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
      {.op = "adamw", .supports = SupportsUpdate, .prepare = PrepareAdamW},
      {.op = "sgd", .supports = SupportsUpdate, .prepare = PrepareSgd},
      {.op = "advance_state", .prepare = PrepareAdvanceState},
  };
  return kernels;
}

}  // namespace shardgraph
