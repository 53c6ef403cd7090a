#include "fsdp/train/optimizer_nodes.h"

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/train/parameter_gather.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/random/random.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

const TensorType kF64Scalar(DType::kF64, {});
const TensorType kF32Scalar(DType::kF32, {});
const TensorType kI32Scalar(DType::kI32, {});
const TensorType kI64Scalar(DType::kI64, {});
const TensorType kGroupsF32(DType::kF32, {StepState::kMaxGroups});
const TensorType kGroupsF64(DType::kF64, {StepState::kMaxGroups});

bool IsAdam(const OptimizerSpec& spec) {
  return spec.kind() == OptimizerSpec::ADAMW ||
         spec.kind() == OptimizerSpec::ADAM;
}

}  // namespace

int NumMoments(const OptimizerSpec& spec) {
  if (IsAdam(spec)) return 2;
  return spec.kind() == OptimizerSpec::LION || spec.momentum() != 0;
}

Attributes SegmentsOf(const FlatParameter& flat) {
  return Attributes()
      .SetString(kGroupAttribute, kShardGroup)
      .SetInts("segments", flat.SegmentAttribute());
}

void EmitUpdate(GraphBuilder& builder, const TrainConfig& config,
                const ParameterGroups& groups, const FlatParameter& flat,
                const UnitBuffers& buffers, DType compute, DType moments) {
  const OptimizerSpec& spec = config.optimizer();
  const auto shard = [&](BufferId buffer, DType dtype) {
    return builder.Current(buffer, TensorType(dtype, {flat.shard_numel}), 0);
  };
  const bool has_compute =
      buffers.compute != kNone && buffers.compute != buffers.master;
  std::vector<ValueId> operands = {shard(buffers.master, DType::kF32),
                                   shard(buffers.gradient, DType::kF32)};
  if (buffers.exp_avg != kNone)
    operands.push_back(shard(buffers.exp_avg, moments));
  if (buffers.exp_avg_sq != kNone)
    operands.push_back(shard(buffers.exp_avg_sq, moments));
  if (has_compute) operands.push_back(shard(buffers.compute, compute));
  operands.push_back(
      builder.StateField(offsetof(StepState, learning_rate), kGroupsF32));
  if (IsAdam(spec)) {
    operands.push_back(
        builder.StateField(offsetof(StepState, beta1_power), kGroupsF64));
    operands.push_back(
        builder.StateField(offsetof(StepState, beta2_power), kGroupsF64));
  }
  operands.push_back(
      builder.StateField(offsetof(StepState, gradient_scale), kF64Scalar));
  operands.push_back(
      builder.StateField(offsetof(StepState, found_inf), kI32Scalar));

  Attributes attributes = SegmentsOf(flat);
  attributes.SetInt("has_compute", has_compute);
  if (moments == DType::kBF16 && buffers.exp_avg != kNone) {
    operands.push_back(
        builder.StateField(offsetof(StepState, run_step), kI64Scalar));
    const uint64_t key = HashName(absl::StrCat("moments of ", flat.name));
    attributes.SetInt("seed", static_cast<int64_t>(config.run().seed()))
        .SetInt("key", static_cast<int64_t>(key));
  }
  for (size_t group = 0; group < groups.groups().size(); ++group) {
    const auto set = [&](absl::string_view name, double value) {
      attributes.SetDouble(absl::StrCat(name, "_", group), value);
    };
    set("weight_decay", groups.groups()[group].weight_decay);
    if (spec.kind() != OptimizerSpec::SGD) {
      set("beta1", spec.beta1());
      set("beta2", spec.beta2());
    }
    if (IsAdam(spec)) set("epsilon", spec.epsilon());
    if (spec.kind() == OptimizerSpec::SGD && buffers.exp_avg != kNone)
      set("momentum", spec.momentum());
  }
  if (spec.kind() == OptimizerSpec::ADAM) attributes.SetInt("l2", 1);
  if (spec.kind() == OptimizerSpec::SGD)
    attributes.SetInt("has_momentum", buffers.exp_avg != kNone);
  builder.Emit(IsAdam(spec)                         ? "adamw"
               : spec.kind() == OptimizerSpec::LION ? "lion"
                                                    : "sgd",
               operands, std::move(attributes));
}

void EmitFinish(GraphBuilder& builder, const TrainConfig& config,
                ValueId sums) {
  const auto state = [&](size_t offset, const TensorType& type) {
    return builder.StateField(offset, type);
  };
  const auto place = [&](size_t offset, const TensorType& type) {
    return Placement{builder.state_buffer(), static_cast<int64_t>(offset),
                     type};
  };
  NonFinite policy = NonFinite::kStop;
  if (config.run().non_finite() == RunSpec::SKIP) policy = NonFinite::kSkip;
  if (config.run().non_finite() == RunSpec::IGNORE) policy = NonFinite::kIgnore;
  builder.Emit(
      "finish_gradients",
      {sums, state(offsetof(StepState, token_count), kF64Scalar),
       state(offsetof(StepState, nominal_tokens), kF64Scalar),
       state(offsetof(StepState, loss_scale), kF32Scalar),
       state(offsetof(StepState, stop), kI32Scalar)},
      Attributes()
          .SetDouble("max_norm", config.optimizer().max_gradient_norm())
          .SetInt("non_finite", static_cast<int64_t>(policy)),
      {place(offsetof(StepState, gradient_norm), kF64Scalar),
       place(offsetof(StepState, gradient_scale), kF64Scalar),
       place(offsetof(StepState, found_inf), kI32Scalar), Placement{}});
}

void EmitAdvance(GraphBuilder& builder, const TrainConfig& config,
                 const ParameterGroups& groups) {
  const OptimizerSpec& spec = config.optimizer();
  Attributes betas;
  for (size_t group = 0; group < groups.groups().size(); ++group) {
    betas.SetDouble(absl::StrCat("beta1_", group), spec.beta1());
    betas.SetDouble(absl::StrCat("beta2_", group), spec.beta2());
  }
  const ValueId found_inf =
      builder.StateField(offsetof(StepState, found_inf), kI32Scalar);
  builder.Emit(
      "advance_state",
      {builder.StateField(offsetof(StepState, optimizer_step), kI64Scalar),
       builder.StateField(offsetof(StepState, beta1_power), kGroupsF64),
       builder.StateField(offsetof(StepState, beta2_power), kGroupsF64),
       found_inf},
      std::move(betas));
  if (config.precision().compute() != FP16) return;
  const LossScaleSpec& scale = config.precision().loss_scale();
  builder.Emit(
      "update_loss_scale",
      {builder.StateField(offsetof(StepState, loss_scale), kF32Scalar),
       builder.StateField(offsetof(StepState, growth_counter), kI32Scalar),
       found_inf},
      Attributes()
          .SetDouble("growth", scale.growth_factor())
          .SetDouble("backoff", scale.backoff_factor())
          .SetInt("interval", scale.growth_interval()));
}

}  // namespace shardgraph
