#include "graph/order.h"

#include <algorithm>

#include "kernels/check.h"

namespace shardgraph {

int32_t LaneClocks::Append(int32_t lane) {
  SG_CHECK(lane >= 0 && lane < kMaxLanes) << "lane " << lane;
  LaneClock clock = {};
  std::vector<int32_t>& nodes = nodes_[lane];
  if (!nodes.empty()) clock = clock_[nodes.back()];
  const int32_t index = static_cast<int32_t>(nodes.size());
  clock[lane] = index;
  const int32_t position = size();
  nodes.push_back(position);
  lane_.push_back(lane);
  index_.push_back(index);
  clock_.push_back(clock);
  return position;
}

void LaneClocks::Wait(int32_t from) {
  SG_CHECK(from >= 0 && from < size() - 1) << "wait for position " << from;
  LaneClock& clock = clock_.back();
  const LaneClock& other = clock_[from];
  for (int l = 0; l < kMaxLanes; ++l) clock[l] = std::max(clock[l], other[l]);
  int32_t& own = clock[lane_[from]];
  own = std::max(own, index_[from] + 1);
}

LaneClocks ClocksOf(const Graph& graph, const PhaseSchedule& schedule) {
  std::vector<int32_t> position(graph.nodes.size(), kNone);
  for (size_t i = 0; i < schedule.order.size(); ++i)
    position[schedule.order[i]] = static_cast<int32_t>(i);
  LaneClocks clocks;
  size_t edge = 0;
  for (size_t i = 0; i < schedule.order.size(); ++i) {
    clocks.Append(schedule.lanes[i]);
    for (; edge < schedule.edges.size() &&
           schedule.edges[edge].to == schedule.order[i];
         ++edge) {
      clocks.Wait(position[schedule.edges[edge].from]);
    }
  }
  SG_CHECK_EQ(edge, schedule.edges.size()) << "edges are not sorted";
  return clocks;
}

}  // namespace shardgraph
