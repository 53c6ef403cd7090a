// What a node waits for because of the bytes it touches, in program order.
#ifndef GRAPH_DEPENDENCIES_H_
#define GRAPH_DEPENDENCIES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace shardgraph {

inline constexpr int kNumLaneKinds = 4;

// By LaneKind: the last node of that kind, as an index into Phase::nodes, that
// comes before the node in program order and conflicts with it (writes what it
// reads, or touches what it writes); kNone if there is none. Earlier ones of
// the kind are covered as long as nodes of one kind keep their order; for that
// reason the node's own kind may be left out.
using Dependencies = std::array<int32_t, kNumLaneKinds>;

// One entry per node of the phase, in program order.
std::vector<Dependencies> DependenciesOf(const Graph& graph,
                                         const Phase& phase);

}  // namespace shardgraph

#endif  // GRAPH_DEPENDENCIES_H_
