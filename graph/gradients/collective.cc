#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

// Every rank used the whole: each shard's gradient is the sum over ranks of its
// piece. In the dtype in which the gradient of the whole is kept (FP32 by its
// GradientBase), whatever the dtype that was gathered.
absl::Status AllGather(GradientContext& context) {
  const auto results = context.Emit("reduce_scatter", {context.gradient(0)},
                                    context.node().attributes, {0});
  Graph& graph = context.builder().graph();
  graph.buffers[graph.values[results[0]].buffer].kind =
      MemoryKind::kReduceStage;
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> CollectiveGradientRules() {
  static constexpr GradientRule rules[] = {
      {.op = "all_gather", .apply = AllGather}};
  return rules;
}

}  // namespace shardgraph
