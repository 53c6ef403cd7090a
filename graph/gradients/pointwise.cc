#include "absl/strings/str_cat.h"
#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

absl::Status Add(GradientContext& context) {
  context.Contribute(0, context.gradient(0));
  context.Contribute(1, context.gradient(0));
  return absl::OkStatus();
}

// gelu, silu, relu: op_gradient(dy, x).
absl::Status Activation(GradientContext& context) {
  const std::string op =
      absl::StrCat(std::string(context.node().op->name), "_gradient");
  context.Emit(op, {context.gradient(0), context.operand(0)},
               context.node().attributes, {0});
  return absl::OkStatus();
}

absl::Status Swiglu(GradientContext& context) {
  context.Emit("swiglu_gradient",
               {context.gradient(0), context.operand(0), context.operand(1)},
               {}, {0, 1});
  return absl::OkStatus();
}

absl::Status Cast(GradientContext& context) {
  const ValueId dy = context.gradient(0);
  if (context.builder().type(dy).dtype == context.gradient_dtype(0)) {
    context.Contribute(0, dy);
    return absl::OkStatus();
  }
  Attributes attributes;
  attributes.SetString("dtype", DTypeName(context.gradient_dtype(0)));
  context.Emit("cast", {dy}, std::move(attributes), {0});
  return absl::OkStatus();
}

absl::Status Scale(GradientContext& context) {
  context.Emit("scale", {context.gradient(0), context.operand(1)}, {}, {0});
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> PointwiseGradientRules() {
  static constexpr GradientRule rules[] = {
      {.op = "add", .apply = Add},         {.op = "gelu", .apply = Activation},
      {.op = "silu", .apply = Activation}, {.op = "relu", .apply = Activation},
      {.op = "swiglu", .apply = Swiglu},   {.op = "cast", .apply = Cast},
      {.op = "scale", .apply = Scale},
  };
  return rules;
}

}  // namespace shardgraph
