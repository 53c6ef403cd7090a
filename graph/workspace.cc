#include "graph/workspace.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/status_macros.h"

namespace shardgraph {

int64_t LibraryWorkspace(const TargetSpec& target, const Graph& graph,
                         const Node& node, int64_t needed) {
  static constexpr absl::string_view kProducts[] = {
      "matmul", "matmul_pointwise", "matmul_column_sum", "cross_entropy_head",
      "cross_entropy_head_gradient"};
  const auto budget = target.workspace_budget().find("matmul");
  if (budget == target.workspace_budget().end() ||
      std::find(std::begin(kProducts), std::end(kProducts), node.op->name) ==
          std::end(kProducts)) {
    return 0;
  }
  // Room for a sum in so many parts.
  constexpr int64_t kParts = 32, kLeast = 65536;
  int64_t largest = 0;
  for (const auto& types :
       {graph.OperandTypes(node), graph.ResultTypes(node)}) {
    for (const TensorType& type : types)
      largest = std::max(largest, type.num_elements());
  }
  return std::min<int64_t>(
      std::max<int64_t>(budget->second - needed, 0),
      kLeast + kParts * static_cast<int64_t>(sizeof(float)) * largest);
}

WorkspaceFunction KernelWorkspace(const KernelTable& table,
                                  const TargetSpec& target) {
  return [&table, target](const Graph& graph,
                          const Node& node) -> absl::StatusOr<int64_t> {
    const std::vector<TensorType> operands = graph.OperandTypes(node);
    const std::vector<TensorType> results = graph.ResultTypes(node);
    SG_ASSIGN_OR_RETURN(
        const KernelDef* kernel,
        table.Find(node.op->name, node.attributes, operands, results));
    const int64_t needed =
        kernel->workspace == nullptr
            ? 0
            : kernel->workspace(node.attributes, operands, results);
    return needed + LibraryWorkspace(target, graph, node, needed);
  };
}

}  // namespace shardgraph
