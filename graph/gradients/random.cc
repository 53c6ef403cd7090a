#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

// The same elements are kept: dropout is keyed, not drawn.
absl::Status Dropout(GradientContext& context) {
  context.Emit("dropout",
               {context.gradient(0), context.operand(1), context.operand(2)},
               context.node().attributes, {0});
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> RandomGradientRules() {
  static constexpr GradientRule rules[] = {{.op = "dropout", .apply = Dropout}};
  return rules;
}

}  // namespace shardgraph
