// Names what is not finite in a step that was: its weights, or the first node
// of a phase that is run once more for it.
#ifndef FSDP_TRAIN_FINITE_CHECK_H_
#define FSDP_TRAIN_FINITE_CHECK_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"

namespace shardgraph {

// "parameter NAME" of the first parameter of which this rank holds an element
// that is not finite; empty if there is none. `shard`: this rank's index in its
// shard group.
absl::StatusOr<std::string> ParameterNotFinite(const TrainingPlan& plan,
                                               int shard, Executor& executor);

// Runs the phase node by node: "module NAME (OP, forward)" of the first one
// with a result that is not finite; empty if there is none. Collective; every
// rank looks at its own results only.
absl::StatusOr<std::string> ModuleNotFinite(const TrainingPlan& plan,
                                            PhaseId phase, Executor& executor);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_FINITE_CHECK_H_
