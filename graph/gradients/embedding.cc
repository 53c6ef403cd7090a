#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

absl::Status Embedding(GradientContext& context) {
  const ValueId dy = context.gradient(0);
  Attributes attributes;
  attributes.SetInt("rows",
                    context.builder().type(context.operand(1)).shape[0]);
  SetGradientDType(context, 1, context.builder().type(dy).dtype, &attributes);
  context.Emit("embedding_gradient", {context.operand(0), dy},
               std::move(attributes), {1});
  return absl::OkStatus();
}

// A rotation: its transpose turns back.
absl::Status Rotary(GradientContext& context) {
  Attributes attributes = context.node().attributes;
  attributes.SetInt("inverse", attributes.Int("inverse") != 0 ? 0 : 1);
  context.Emit("rotary", {context.gradient(0), context.operand(1)},
               std::move(attributes), {0});
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> EmbeddingGradientRules() {
  static constexpr GradientRule rules[] = {
      {.op = "embedding", .apply = Embedding},
      {.op = "positions"},
      {.op = "rotary", .apply = Rotary},
  };
  return rules;
}

}  // namespace shardgraph
