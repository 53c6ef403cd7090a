#include <cstddef>

#include "graph/gradients/gradients.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

// Loss and gradient in one node, so that logits are made once and never whole.
absl::Status CrossEntropyHead(GradientContext& context) {
  GraphBuilder& builder = context.builder();
  const ValueId loss_scale = builder.StateField(offsetof(StepState, loss_scale),
                                                TensorType(DType::kF32, {}));
  const ValueId nominal_tokens = builder.StateField(
      offsetof(StepState, nominal_tokens), TensorType(DType::kF64, {}));
  Attributes attributes = context.node().attributes;
  SetGradientDType(context, 1, builder.type(context.operand(1)).dtype,
                   &attributes);
  const auto results =
      context.Emit("cross_entropy_head_gradient",
                   {context.operand(0), context.operand(1), context.operand(2),
                    loss_scale, nominal_tokens},
                   std::move(attributes), {kNone, 0, 1});
  context.Replace({results[0]});
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> LossGradientRules() {
  static constexpr GradientRule rules[] = {
      {.op = "cross_entropy_head", .apply = CrossEntropyHead, .is_loss = true}};
  return rules;
}

}  // namespace shardgraph
