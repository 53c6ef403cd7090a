#include "tools/plan/step_time.h"

#include <utility>

#include "kernels/status_macros.h"

namespace shardgraph {

std::vector<StepPhase> StepPhasesOf(const Graph& graph, int64_t micro_batches) {
  const bool has_last = graph.FindPhase(kLastMicroPhase) != kNone;
  std::vector<StepPhase> phases;
  for (const auto& [name, runs] :
       {std::pair<const char*, int64_t>{"micro", micro_batches - has_last},
        {kLastMicroPhase, 1},
        {"update", 1}}) {
    const PhaseId phase = graph.FindPhase(name);
    if (phase != kNone) phases.push_back({phase, runs});
  }
  return phases;
}

absl::StatusOr<double> SecondsOfStep(const TrainingPlan& plan,
                                     int64_t micro_batches,
                                     const NodeSeconds& seconds) {
  double sum = 0;
  for (const StepPhase& phase : StepPhasesOf(plan.plan.graph, micro_batches)) {
    SG_ASSIGN_OR_RETURN(const PhaseTimeline timeline,
                        SimulatePhase(plan.plan, phase.phase, seconds));
    sum += static_cast<double>(phase.runs) * timeline.seconds;
  }
  return sum;
}

}  // namespace shardgraph
