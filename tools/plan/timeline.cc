#include "tools/plan/timeline.h"

#include <map>
#include <memory>

#include "kernels/simulated/backend.h"
#include "kernels/status_macros.h"

namespace shardgraph {
// The executor's walk, without memory and communicators.
absl::StatusOr<PhaseTimeline> SimulatePhase(const StepPlan& plan, PhaseId phase,
                                            const NodeSeconds& seconds) {
  const PhaseSchedule& schedule = plan.schedules[phase];
  std::map<NodeId, int> events;
  for (const Edge& edge : schedule.edges)
    events.emplace(edge.from, static_cast<int>(events.size()));
  SimulatedBackend backend(nullptr);
  SG_RETURN_IF_ERROR(
      backend.Prepare(plan.num_lanes, static_cast<int>(events.size())));
  std::vector<std::unique_ptr<PreparedKernel>> kernels;
  auto edge = schedule.edges.begin();
  for (size_t i = 0; i < schedule.order.size(); ++i) {
    const NodeId id = schedule.order[i];
    const int lane = schedule.lanes[i];
    for (; edge != schedule.edges.end() && edge->to == id; ++edge)
      backend.Wait(lane, events.at(edge->from));
    const Node& node = plan.graph.nodes[id];
    kernels.push_back(MakeSimulatedKernel(std::string(node.op->name),
                                          seconds(plan.graph, node)));
    backend.Launch(lane, kernels.back().get());
    if (const auto event = events.find(id); event != events.end())
      backend.Record(lane, event->second);
  }
  SG_RETURN_IF_ERROR(backend.Synchronize());

  PhaseTimeline timeline;
  timeline.phase = schedule.phase;
  timeline.seconds = backend.now();
  for (size_t i = 0; i < schedule.order.size(); ++i) {
    const SimulatedLaunch& launch = backend.timeline()[i];
    timeline.nodes.push_back({schedule.order[i], launch.lane, launch.ready,
                              launch.begin, launch.end});
  }
  return timeline;
}

double PhaseTimeline::Busy(int lane) const {
  double busy = 0;
  for (const NodeTime& node : nodes) {
    if (node.lane == lane) busy += node.end - node.begin;
  }
  return busy;
}

absl::StatusOr<std::vector<PhaseTimeline>> SimulatePlan(
    const StepPlan& plan, const NodeSeconds& seconds) {
  std::vector<PhaseTimeline> timelines;
  for (const PhaseSchedule& schedule : plan.schedules) {
    SG_ASSIGN_OR_RETURN(timelines.emplace_back(),
                        SimulatePhase(plan, schedule.phase, seconds));
  }
  return timelines;
}

std::string LaneName(int lane, int num_lanes) {
  if (num_lanes == 1) return "all";
  if (num_lanes == 2 && lane == 1) return "communication";
  constexpr const char* kNames[] = {"compute", "gather", "reduce", "copy"};
  return kNames[lane];
}

}  // namespace shardgraph
