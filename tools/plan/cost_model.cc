#include "tools/plan/cost_model.h"

#include <algorithm>

#include "graph/step_plan.h"
#include "kernels/op.h"

namespace shardgraph {
namespace {

double Over(double work, double rate) { return rate > 0 ? work / rate : 0; }

bool IsCollective(const Node& node) {
  return node.op->lane == LaneKind::kGather ||
         node.op->lane == LaneKind::kReduce;
}

double CollectiveSeconds(const Graph& graph, const Node& node,
                         const TargetSpec& target) {
  const Group* group = graph.FindGroup(node.attributes.String(kGroupAttribute));
  if (group == nullptr || group->size < 2) return target.launch_latency();
  return Over(static_cast<double>(CollectiveBytes(graph, node)),
              target.network_bandwidth()) +
         target.network_latency();
}

}  // namespace

NodeSeconds CostModel(const TargetSpec& target) {
  return [target](const Graph& graph, const Node& node) {
    if (IsCollective(node)) return CollectiveSeconds(graph, node, target);
    const OpCost cost =
        CostOf(*node.op, node.attributes, graph.OperandTypes(node),
               graph.ResultTypes(node));
    DType dtype = DType::kF32;
    for (ValueId operand : node.operands) {
      if (IsFloating(graph.values[operand].type.dtype)) {
        dtype = graph.values[operand].type.dtype;
        break;
      }
    }
    const double peak = dtype == DType::kBF16 || dtype == DType::kF16
                            ? target.bf16_flops()
                            : target.fp32_flops();
    const double compute = Over(cost.matmul_flops, peak) +
                           Over(cost.pointwise_flops, target.fp32_flops());
    const double memory =
        Over(static_cast<double>(cost.bytes), target.memory_bandwidth());
    return std::max(compute, memory) + target.launch_latency();
  };
}

}  // namespace shardgraph
