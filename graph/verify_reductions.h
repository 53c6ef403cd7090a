// The part of Verify that proves sums over ranks whole: every gradient is
// summed over each rank of the world once, every norm over the shards that it
// was taken of, the step's loss over the world.
#ifndef GRAPH_VERIFY_REDUCTIONS_H_
#define GRAPH_VERIFY_REDUCTIONS_H_

#include "absl/status/status.h"
#include "graph/graph.h"

namespace shardgraph {

// Follows, in program order, over which groups each value has been summed. What
// an op with the attribute "segments" takes for a gradient must have been
// summed over groups that make up the group "world" (strides and sizes
// multiply); nothing is claimed of a graph without such a group. Pieces that
// the ranks of a group have exchanged are all added up. Only sums over the same
// groups are accumulated, and a gradient shard is only added to, or made of
// what has been. Sums of squares are shares of the group that their segments
// name: they are summed over that group and no other before finish_gradients
// reads them. An all_reduce of persistent state is over the world.
absl::Status VerifyReductions(const Graph& graph);

}  // namespace shardgraph

#endif  // GRAPH_VERIFY_REDUCTIONS_H_
