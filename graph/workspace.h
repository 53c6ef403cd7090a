// Workspace sizes from the kernels of a backend, for Lower.
#ifndef GRAPH_WORKSPACE_H_
#define GRAPH_WORKSPACE_H_

#include "graph/passes.h"
#include "kernels/kernel.h"

namespace shardgraph {

// What `table`'s kernels ask for. The function refers to the table.
WorkspaceFunction KernelWorkspace(const KernelTable& table);

}  // namespace shardgraph

#endif  // GRAPH_WORKSPACE_H_
