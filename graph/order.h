// LaneClocks: happens-before within one run of a phase, as vector clocks over
// lanes.
//
// Nodes are appended in total order and known by their position in it. The
// clock of a node says for each lane how many of its nodes have surely finished
// when the node starts. Shared by Schedule and PlanMemory; Verify has its own.
#ifndef GRAPH_ORDER_H_
#define GRAPH_ORDER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "graph/step_plan.h"

namespace shardgraph {

// One lane per LaneKind at most.
inline constexpr int kMaxLanes = 4;
using LaneClock = std::array<int32_t, kMaxLanes>;

class LaneClocks {
 public:
  // Appends the next node of the total order; returns its position.
  int32_t Append(int32_t lane);
  // The node appended last starts only after the node at `from` has finished.
  void Wait(int32_t from);

  int32_t size() const { return static_cast<int32_t>(lane_.size()); }
  int32_t lane(int32_t position) const { return lane_[position]; }
  // How many nodes of its lane are before it.
  int32_t index(int32_t position) const { return index_[position]; }
  const LaneClock& clock(int32_t position) const { return clock_[position]; }
  // Positions of the nodes of a lane, in order.
  const std::vector<int32_t>& nodes(int32_t lane) const { return nodes_[lane]; }
  // Whether `a` has finished whenever `b` starts.
  bool Before(int32_t a, int32_t b) const {
    return clock_[b][lane_[a]] > index_[a];
  }

 private:
  std::vector<int32_t> lane_;
  std::vector<int32_t> index_;
  std::vector<LaneClock> clock_;
  std::array<std::vector<int32_t>, kMaxLanes> nodes_;
};

// The clocks of a finished schedule. Edges must lead forward in its order.
LaneClocks ClocksOf(const Graph& graph, const PhaseSchedule& schedule);

}  // namespace shardgraph

#endif  // GRAPH_ORDER_H_
