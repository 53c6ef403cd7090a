#include "graph/gradients/gradients.h"

#include <array>

namespace shardgraph {

absl::Span<const absl::Span<const GradientRule>> AllGradientRules() {
  static const std::array<absl::Span<const GradientRule>, 9> rules = {
      AttentionGradientRules(), CollectiveGradientRules(),
      EmbeddingGradientRules(), LayoutGradientRules(),
      LossGradientRules(),      MatmulGradientRules(),
      NormGradientRules(),      PointwiseGradientRules(),
      RandomGradientRules(),
  };
  return rules;
}

const GradientRule* FindGradientRule(absl::string_view op) {
  for (absl::Span<const GradientRule> family : AllGradientRules())
    for (const GradientRule& rule : family)
      if (rule.op == op) return &rule;
  return nullptr;
}

void SetGradientDType(const GradientContext& context, int i, DType natural,
                      Attributes* attributes) {
  if (context.gradient_dtype(i) != natural)
    attributes->SetString("dtype", DTypeName(context.gradient_dtype(i)));
}

}  // namespace shardgraph
