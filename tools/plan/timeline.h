// When each node of a plan runs, by a cost model, on the simulated backend.
#ifndef TOOLS_PLAN_TIMELINE_H_
#define TOOLS_PLAN_TIMELINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/step_plan.h"
#include "tools/plan/cost_model.h"

namespace shardgraph {

// Seconds from the start of the phase.
struct NodeTime {
  NodeId node = kNone;
  int32_t lane = 0;
  double ready = 0;  // the lane was free from here on,
  double begin = 0;  // and waited for other lanes until here
  double end = 0;
};

// One run of a phase.
struct PhaseTimeline {
  PhaseId phase = kNone;
  std::vector<NodeTime> nodes;  // in the schedule's total order
  double seconds = 0;

  double Busy(int lane) const;  // seconds
};

// Errors are those of the cost model: a time that is none.
absl::StatusOr<PhaseTimeline> SimulatePhase(const StepPlan& plan, PhaseId phase,
                                            const NodeSeconds& seconds);
// All of them, by phase.
absl::StatusOr<std::vector<PhaseTimeline>> SimulatePlan(
    const StepPlan& plan, const NodeSeconds& seconds);

// "compute", "gather", "reduce", "copy"; "communication" where a target folds
// gather and reduce into one lane, "all" where everything is one lane.
std::string LaneName(int lane, int num_lanes);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_TIMELINE_H_
