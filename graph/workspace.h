// Workspace sizes from the kernels of a backend, for Lower.
#ifndef GRAPH_WORKSPACE_H_
#define GRAPH_WORKSPACE_H_

#include <cstdint>

#include "graph/passes.h"
#include "kernels/kernel.h"
#include "proto/target.pb.h"

namespace shardgraph {

// What `table`'s kernels ask for and, for an op that contains matrix products,
// LibraryWorkspace besides. The function refers to the table.
WorkspaceFunction KernelWorkspace(const KernelTable& table,
                                  const TargetSpec& target = TargetSpec());

// Bytes that `node` is given on top of the `needed` of its kernel, for the
// library that multiplies there to choose from: what they leave of the target's
// budget for "matmul" where the node contains a product of matrices, less where
// its tensors are small; else 0. Kernels get along without.
int64_t LibraryWorkspace(const TargetSpec& target, const Graph& graph,
                         const Node& node, int64_t needed = 0);

}  // namespace shardgraph

#endif  // GRAPH_WORKSPACE_H_
