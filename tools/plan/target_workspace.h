// Scratch memory of nodes on a target that may not be this machine.
#ifndef TOOLS_PLAN_TARGET_WORKSPACE_H_
#define TOOLS_PLAN_TARGET_WORKSPACE_H_

#include "graph/passes.h"
#include "proto/target.pb.h"

namespace shardgraph {

// Whether the target is a GPU: those have a budget for "matmul".
bool IsGpu(const TargetSpec& target);

// On a GPU a product takes LibraryWorkspace of that budget, from which cuBLASLt
// chooses, and attention what cuDNN or the own kernel takes. Any other op takes
// what its CPU kernel takes, which for the output head (a chunk of logits) and
// the norms (partial sums) is what the algorithm needs anywhere.
WorkspaceFunction TargetWorkspace(const TargetSpec& target);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_TARGET_WORKSPACE_H_
