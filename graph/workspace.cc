#include "graph/workspace.h"

#include <vector>

#include "kernels/status_macros.h"

namespace shardgraph {

WorkspaceFunction KernelWorkspace(const KernelTable& table) {
  return [&table](const Graph& graph,
                  const Node& node) -> absl::StatusOr<int64_t> {
    const std::vector<TensorType> operands = graph.OperandTypes(node);
    const std::vector<TensorType> results = graph.ResultTypes(node);
    SG_ASSIGN_OR_RETURN(
        const KernelDef* kernel,
        table.Find(node.op->name, node.attributes, operands, results));
    return kernel->workspace == nullptr
               ? 0
               : kernel->workspace(node.attributes, operands, results);
  };
}

}  // namespace shardgraph
