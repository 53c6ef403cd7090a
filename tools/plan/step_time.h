// What a step of a plan takes by a cost model.
#ifndef TOOLS_PLAN_STEP_TIME_H_
#define TOOLS_PLAN_STEP_TIME_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/train/training_plan.h"
#include "graph/graph.h"
#include "tools/plan/timeline.h"

namespace shardgraph {

// A phase and how often a step runs it.
struct StepPhase {
  PhaseId phase = kNone;
  int64_t runs = 1;
};

// micro, micro@last and update, those that there are.
std::vector<StepPhase> StepPhasesOf(const Graph& graph, int64_t micro_batches);

// Seconds of a step of so many micro-batches, phase after phase.
absl::StatusOr<double> SecondsOfStep(const TrainingPlan& plan,
                                     int64_t micro_batches,
                                     const NodeSeconds& seconds);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_STEP_TIME_H_
