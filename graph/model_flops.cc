#include "graph/model_flops.h"

namespace shardgraph {

double ModelFlopsOf(const Graph& graph, PhaseId phase) {
  double flops = 0;
  for (NodeId id : graph.phases[phase].nodes) {
    const Node& node = graph.nodes[id];
    if (node.op->cost == nullptr) continue;
    // The head computes loss and gradient at once: three products of its own.
    const bool head = node.op->name == "cross_entropy_head_gradient";
    if (node.direction != Direction::kForward && !head) continue;
    flops += (head ? 1 : 3) * CostOf(*node.op, node.attributes,
                                     graph.OperandTypes(node),
                                     graph.ResultTypes(node))
                                  .matmul_flops;
  }
  return flops;
}

}  // namespace shardgraph
