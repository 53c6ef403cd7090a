// Scratch memory of nodes on a target that may not be this machine.
#ifndef TOOLS_PLAN_TARGET_WORKSPACE_H_
#define TOOLS_PLAN_TARGET_WORKSPACE_H_

#include "graph/passes.h"
#include "proto/target.pb.h"

namespace shardgraph {

// An op whose family has a workspace_budget in the target takes the whole of
// it: a library may, and the plan holds whatever it chooses. Any other op takes
// what its CPU kernel takes, which for the output head (a chunk of logits) and
// the norms (partial sums) is what the algorithm needs anywhere.
WorkspaceFunction TargetWorkspace(const TargetSpec& target);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_TARGET_WORKSPACE_H_
