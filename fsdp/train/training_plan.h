// MakeTrainingPlan: from a config to the verified plan of its steps: model,
// units, layout, graph, schedule, memory.
#ifndef FSDP_TRAIN_TRAINING_PLAN_H_
#define FSDP_TRAIN_TRAINING_PLAN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/shard/flat_parameter.h"
#include "fsdp/train/step_builder.h"
#include "graph/model/module.h"
#include "graph/passes.h"
#include "graph/step_plan.h"
#include "kernels/step_state.h"
#include "proto/target.pb.h"
#include "proto/train.pb.h"

namespace shardgraph {

struct PlanRequest {
  const TrainConfig* config = nullptr;  // resolved
  int world_size = 1;
  TargetSpec target;
  WorkspaceFunction
      workspace;  // of the backend that will run the plan; null: none
  // Only a plan that was verified may run; one that is just looked at need not
  // be.
  bool verify = true;
  bool train = true;
  bool evaluate = true;
  bool generate = false;
  GenerateShape generate_shape;
};

// Immutable, the same on every rank.
struct TrainingPlan {
  std::unique_ptr<Model> model;
  ParameterGroups parameter_groups;  // refer to model
  ShardLayout layout;                // refers to model
  ShardGroups groups;
  std::vector<UnitBuffers> units;  // as layout.units()
  DType compute = DType::kBF16;
  DType moments = DType::kF32;
  BufferId state = kNone;
  StepPlan plan;

  // Host memory of a copy of what checkpoints save, at most: masters (compute
  // shards where there are none) and moments in FP32, as in the rank's files.
  int64_t SnapshotBytes() const;
  // That a rank takes when it trains; 0 when the config asks for no copy.
  int64_t snapshot_bytes = 0;
};

// Errors name the config field, its value and the remedy.
absl::StatusOr<std::unique_ptr<TrainingPlan>> MakeTrainingPlan(
    const PlanRequest& request);

// StepState before the first step.
StepState FreshState(const TrainConfig& config);

// Micro-batches of a step: batch_size over world_size x micro_batch_size,
// rounded up; what is missing is filled with sequences of weight 0.
int64_t MicroBatches(const DataSpec& data, int world_size);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_TRAINING_PLAN_H_
