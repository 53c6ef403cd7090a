// Trial: a plan that runs for a while, on made-up tokens and new weights,
// beside the rank's own backend: to see what it takes.
#ifndef TOOLS_RECOMPUTE_TRIAL_H_
#define TOOLS_RECOMPUTE_TRIAL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/data/batches.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "graph/trace.h"
#include "proto/train.pb.h"
#include "tools/runtime/runtime.h"

namespace shardgraph {

// Micro-batches of a trial's steps, at most: enough for each variant.
inline constexpr int64_t kTrialMicroBatches = 2;

// One micro-batch of made-up tokens, other ones for each step, micro-batch and
// rank.
void MadeUpBatch(const DataSpec& data, int64_t vocab_size, int rank,
                 int64_t step, int64_t micro, Batch* batch);

class Trial {
 public:
  // Collective, on CPUs. `plan`, of the config, and the runtime outlive it.
  // `recorded_steps` 0: nothing is recorded.
  static absl::StatusOr<std::unique_ptr<Trial>> Create(
      const TrainConfig& config, const TrainingPlan& plan, Runtime& runtime,
      int64_t recorded_steps);
  ~Trial();

  // Steps that are not yet as the others: the eager one, and two to settle.
  // Collective.
  absl::Status WarmUp();
  // One step on all ranks, which start together: seconds that the slowest one
  // took, the same on all. Collective.
  absl::StatusOr<double> Step();

  int64_t micro_batches() const { return micro_batches_; }
  // Of the steps behind WarmUp.
  const TraceRecorder& recorder() const { return *recorder_; }

 private:
  Trial(const TrainConfig& config, const TrainingPlan& plan, Runtime& runtime);
  absl::Status Start(int64_t recorded_steps);

  TrainConfig config_;
  const TrainingPlan& plan_;
  Runtime& runtime_;
  int64_t micro_batches_ = 1;
  int64_t step_ = 0;
  TrialBackend backend_;
  std::unique_ptr<TraceRecorder> recorder_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace shardgraph

#endif  // TOOLS_RECOMPUTE_TRIAL_H_
