// The program `train`: a training run from flags to its run directory.
#ifndef TOOLS_TRAIN_TRAIN_H_
#define TOOLS_TRAIN_TRAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/data/batches.h"
#include "fsdp/launch/environment.h"
#include "graph/executor.h"
#include "graph/model/module.h"
#include "graph/step_plan.h"
#include "proto/target.pb.h"
#include "proto/train.pb.h"

namespace shardgraph {

struct TrainFlags {
  std::string config;           // preset or path
  int64_t num_ranks = 1;        // of this host, when no launcher has started us
  std::string run_directory;    // absolute once prepared
  std::string resume = "auto";  // auto, never, or a checkpoint
  std::string device;           // empty: the config's
  std::vector<std::string> overrides;
};

// Changes how this rank's executor runs the plan; null: it does not. Fault
// tests put their faults in with it.
using TuneExecutor =
    std::function<void(const StepPlan& plan, ExecutorOptions* options)>;

// InvalidArgument for wrong flags, Cancelled with the usage text for --help.
absl::StatusOr<TrainFlags> ParseTrainFlags(
    const std::vector<std::string>& args);

// A run that has been checked as far as one process can: everything but the
// ranks themselves.
struct PreparedRun {
  TrainFlags flags;
  TrainConfig config;  // resolved
  std::string note;    // what the user may want to know; may be empty
  TargetSpec target;
  int64_t vocab_size = 0;
  TuneExecutor tune_executor;
};

// Reads config and model, checks them and the data files, chooses the device.
// Errors name field or file, value and remedy.
absl::StatusOr<PreparedRun> PrepareRun(TrainFlags flags, int world_size,
                                       int local_ranks);

// The training data.
absl::StatusOr<std::unique_ptr<TokenMix>> OpenTraining(const DataSpec& data,
                                                       int64_t vocab_size);
// The held-out tokens; null when there are none.
absl::StatusOr<std::unique_ptr<TokenData>> OpenHeldOut(const DataSpec& data,
                                                       int64_t vocab_size);

// Trains as one rank of the job. Collective. Cancelled, with a line for the
// user: a signal asked a rank to stop, the step was finished and a checkpoint
// saved.
absl::Status RunRank(const PreparedRun& run,
                     const LaunchEnvironment& environment);

// The whole program, `tune_executor` apart: its exit status.
int TrainMain(int argc, char** argv, TuneExecutor tune_executor = nullptr);

}  // namespace shardgraph

#endif  // TOOLS_TRAIN_TRAIN_H_
