// Trainer: the loop over steps: data in, phases run, metrics out, checkpoints.
#ifndef FSDP_TRAIN_TRAINER_H_
#define FSDP_TRAIN_TRAINER_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/data/batches.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/training_plan.h"
#include "fsdp/train/watchdog.h"
#include "graph/executor.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Lets an executor of the plan report each step, as a Trainer reads it.
void ReportSteps(const TrainingPlan& plan, ExecutorOptions* options);

struct TrainerOptions {
  const TrainConfig* config = nullptr;  // resolved
  const TrainingPlan* plan = nullptr;
  Executor* executor = nullptr;  // with ReportSteps
  // Fills this rank's micro-batch `micro` of step `step` (fsdp/data/batches.h).
  std::function<absl::Status(int64_t step, int64_t micro, Batch* batch)>
      training;
  // The same of an evaluation over the first `sequences` held-out sequences;
  // null: no evaluation.
  std::function<absl::Status(int64_t sequences, int64_t micro, Batch* batch)>
      validation;
  int64_t validation_sequences = 0;        // of an evaluation
  int64_t final_validation_sequences = 0;  // of that after the last step
  int rank = 0;
  int world_size = 1;
  double peak_flops = 0;              // of all ranks, FLOP/s; 0: unknown
  std::vector<MetricsSink*> metrics;  // rank 0 only
  // Around each step (0-based), evaluations and checkpoints apart; null:
  // nothing.
  std::function<void(int64_t step)> begin_step;
  std::function<absl::Status(int64_t step)> end_step;
  // Collective: a checkpoint after `step` steps; with `last` it is on the disk
  // when this returns. Null: none.
  std::function<absl::Status(int64_t step, bool last)> save;
  // After the first step, which may take longer than the others; may be null.
  std::function<void()> warmed_up;
  // Collective, after each step: whether all ranks save and stop now; null:
  // never.
  std::function<absl::StatusOr<bool>(double step_seconds)> stop;
  Watchdog* watchdog = nullptr;  // may be null; outlives the trainer
};

class Trainer {
 public:
  explicit Trainer(const TrainerOptions& options);

  // Runs the steps [first_step, config.run.steps), or fewer when asked to stop;
  // returns how many have been taken, first_step included. Collective: all
  // ranks alike. An error says at which step.
  absl::StatusOr<int64_t> Train(int64_t first_step);

  // Mean loss over the first `sequences` held-out ones; collective.
  absl::StatusOr<EvaluationMetrics> Evaluate(int64_t step, int64_t sequences);

  // One step (0-based) without metrics: for tests and benchmarks.
  absl::StatusOr<StepMetrics> Step(int64_t step);

 private:
  // Before the first phase that reads parameters.
  absl::Status Begin();
  absl::Status WriteBatch(const Batch& batch);
  double RateOf(int64_t step) const;  // the learning rate
  // What a step's first micro-batch is given.
  absl::Status StageStart(int64_t step, const Batch& batch);
  // The same of the next step, while this one is on its way.
  void StageAhead(int64_t step);
  // To all sinks. What cannot be written (a full disk) does not end the run.
  template <typename Metrics>
  void Report(const Metrics& metrics);
  // What becomes of the run after a step of these metrics.
  absl::Status CheckFinite(const StepMetrics& metrics);
  // Runs the step's micro-batches again to name what is not finite; collective.
  absl::StatusOr<std::string> FindNotFinite(int64_t step);
  template <typename T>
  absl::Status WriteState(int64_t offset, const T& value);

  TrainerOptions options_;
  BatchShape shape_;
  int64_t micro_batches_;
  PhaseId micro_, last_micro_, update_, eval_, eval_reduce_;
  ValueId tokens_, targets_, sequence_ids_, documents_, loss_pair_;
  bool begun_ = false;
  double model_flops_ = 0;  // of one step, all ranks
  Batch batch_, next_;
  Batch ahead_;  // of step ahead_step_; -1: of none
  int64_t ahead_step_ = -1;
  std::set<MetricsSink*> failed_sinks_;
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_TRAINER_H_
