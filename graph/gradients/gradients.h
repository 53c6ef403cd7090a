// The gradient rules, one list per op family (graph/autodiff.h says what a rule
// is). Each file of this folder holds the rules of the family of its name.
#ifndef GRAPH_GRADIENTS_GRADIENTS_H_
#define GRAPH_GRADIENTS_GRADIENTS_H_

#include "absl/types/span.h"
#include "graph/autodiff.h"

namespace shardgraph {

absl::Span<const GradientRule> AttentionGradientRules();
absl::Span<const GradientRule> CollectiveGradientRules();
absl::Span<const GradientRule> EmbeddingGradientRules();
absl::Span<const GradientRule> LayoutGradientRules();
absl::Span<const GradientRule> LossGradientRules();
absl::Span<const GradientRule> MatmulGradientRules();
absl::Span<const GradientRule> NormGradientRules();
absl::Span<const GradientRule> PointwiseGradientRules();
absl::Span<const GradientRule> RandomGradientRules();

// Sets the attribute "dtype" to that of the gradient of operand `i`, unless it
// is `natural`, what the op gives without the attribute.
void SetGradientDType(const GradientContext& context, int i, DType natural,
                      Attributes* attributes);

}  // namespace shardgraph

#endif  // GRAPH_GRADIENTS_GRADIENTS_H_
