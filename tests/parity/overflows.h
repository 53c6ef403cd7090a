// Overflows: a training of two ranks of which one token leaves the range of the
// compute dtype, in steps and on the rank of the test's choice.
#ifndef TESTS_PARITY_OVERFLOWS_H_
#define TESTS_PARITY_OVERFLOWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/executor.h"
#include "kernels/step_state.h"
#include "proto/train.pb.h"
#include "tests/harness/training_run.h"

namespace shardgraph {

class Overflows {
 public:
  // A small GPT-2, by FP32 or, with precision.compute=FP16, by FP16.
  explicit Overflows(const std::vector<std::string>& overrides);

  // With the steps, the overflows (on rank 1 alone) and the scales of
  // tests/fixtures/grad_scaler.json. Expects of each step that scale and skip
  // are GradScaler's, that skipped steps leave all weights as they were on both
  // ranks and that the schedule goes on.
  static Overflows OfGradScaler(const std::vector<std::string>& overrides);

  // The token comes in these steps, in the last sequence of the rank.
  void In(const std::vector<int64_t>& steps, int rank);

  TrainingRunOptions& options() { return options_; }
  const TrainConfig& config() const { return config_; }
  absl::StatusOr<TrainingRunResult> Train() const {
    return RunTraining(config_, options_);
  }

 private:
  TrainConfig config_;
  TrainingRunOptions options_;
};

StepState StateOf(Executor& executor, const TrainingPlan& plan);

// All bytes of the masters and moments of a rank.
std::vector<char> WeightsOf(Executor& executor, const TrainingPlan& plan);

}  // namespace shardgraph

#endif  // TESTS_PARITY_OVERFLOWS_H_
