#include "tools/plan/target_workspace.h"

#include <string>

#include "graph/workspace.h"
#include "kernels/cpu/kernels.h"
#include "kernels/op_table.h"

namespace shardgraph {

WorkspaceFunction TargetWorkspace(const TargetSpec& target) {
  return [target, kernels = KernelWorkspace(CpuKernels())](
             const Graph& graph, const Node& node) -> absl::StatusOr<int64_t> {
    const auto budget =
        target.workspace_budget().find(std::string(FamilyOf(node.op->name)));
    if (budget != target.workspace_budget().end()) return budget->second;
    return kernels(graph, node);
  };
}

}  // namespace shardgraph
