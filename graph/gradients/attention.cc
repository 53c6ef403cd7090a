#include "absl/status/status.h"
#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

// The probabilities are made again from q, k and the saved lse.
absl::Status Attention(GradientContext& context) {
  const Attributes& attributes = context.node().attributes;
  if (attributes.Int("has_offset") != 0) {
    return absl::UnimplementedError(
        "attention with a query offset (key/value cache) has no gradient");
  }
  if (context.gradient(0) == kNone) return absl::OkStatus();
  absl::InlinedVector<ValueId, 9> operands = {
      context.gradient(0), context.operand(0), context.operand(1),
      context.operand(2),  context.result(0),  context.result(1)};
  for (size_t i = 3; i < context.node().operands.size(); ++i)
    operands.push_back(context.operand(i));  // documents, keys of dropout
  context.Emit("attention_gradient", operands, attributes, {0, 1, 2});
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> AttentionGradientRules() {
  static constexpr GradientRule rules[] = {
      {.op = "attention", .apply = Attention}};
  return rules;
}

}  // namespace shardgraph
