#include "tools/plan/target_workspace.h"

#include <vector>

#include "graph/workspace.h"
#include "kernels/attention/cudnn.h"
#include "kernels/cpu/kernels.h"
#include "kernels/op_table.h"

namespace shardgraph {

bool IsGpu(const TargetSpec& target) {
  return target.workspace_budget().count("matmul") != 0;
}

WorkspaceFunction TargetWorkspace(const TargetSpec& target) {
  if (!IsGpu(target)) return KernelWorkspace(CpuKernels(), target);
  return [target, kernels = KernelWorkspace(CpuKernels(), target)](
             const Graph& graph, const Node& node) -> absl::StatusOr<int64_t> {
    const int64_t library = LibraryWorkspace(target, graph, node);
    if (library > 0 && FamilyOf(node.op->name) == "matmul") return library;
    const bool gradient = node.op->name == "attention_gradient";
    if (!gradient && node.op->name != "attention") return kernels(graph, node);
    const std::vector<TensorType> operands = graph.OperandTypes(node);
    const std::vector<TensorType> results = graph.ResultTypes(node);
    return gradient
               ? AttentionGradientCudaWorkspace(node.attributes, operands,
                                                results)
               : AttentionCudaWorkspace(node.attributes, operands, results);
  };
}

}  // namespace shardgraph
