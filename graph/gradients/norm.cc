#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

// One node for x and the parameters: all need the sums over rows.
absl::Status Norm(GradientContext& context, absl::string_view op, bool bias) {
  if (context.gradient(0) == kNone) return absl::OkStatus();
  Attributes attributes = context.node().attributes;
  SetGradientDType(context, 1, context.builder().type(context.operand(1)).dtype,
                   &attributes);
  absl::InlinedVector<ValueId, 5> operands = {
      context.gradient(0), context.operand(0), context.operand(1)};
  for (size_t r = 1; r < context.node().results.size(); ++r)
    operands.push_back(context.result(r));  // mean, rstd
  if (bias) {
    context.Emit(op, operands, std::move(attributes), {0, 1, 2});
  } else {
    context.Emit(op, operands, std::move(attributes), {0, 1});
  }
  return absl::OkStatus();
}

absl::Status LayerNorm(GradientContext& context) {
  return Norm(context, "layer_norm_gradient",
              context.node().attributes.Int("bias") != 0);
}

absl::Status RmsNorm(GradientContext& context) {
  return Norm(context, "rms_norm_gradient", false);
}

}  // namespace

absl::Span<const GradientRule> NormGradientRules() {
  static constexpr GradientRule rules[] = {
      {.op = "layer_norm", .apply = LayerNorm},
      {.op = "rms_norm", .apply = RmsNorm},
  };
  return rules;
}

}  // namespace shardgraph
