// StepTracer: trace.json of a run: records the steps that the config names and
// has rank 0 write what all ranks recorded.
#ifndef TOOLS_TRAIN_STEP_TRACER_H_
#define TOOLS_TRAIN_STEP_TRACER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "fsdp/train/training_plan.h"
#include "graph/trace.h"
#include "proto/train.pb.h"
#include "tools/runtime/runtime.h"

namespace shardgraph {

// Of one rank; the host thread's alone.
class StepTracer {
 public:
  // Null when `config` asks for no trace, and on a GPU, whose graphs are drawn
  // instead (RuntimeOptions::graph_files). All arguments outlive it.
  static std::unique_ptr<StepTracer> Create(const TrainConfig& config,
                                            const TrainingPlan& plan,
                                            Runtime& runtime);

  // For the executor; outlives it.
  TraceRecorder* recorder() { return &recorder_; }

  // The run begins or goes on with this step (0-based, as below).
  void StartRun(int64_t first_step);
  void BeginStep(int64_t step);
  // After the last step of the trace rank 0 writes the file; collective.
  absl::Status EndStep(int64_t step);

 private:
  StepTracer(const TrainConfig& config, const TrainingPlan& plan,
             Runtime& runtime);

  absl::Status Write();

  const TrainConfig& config_;
  const TrainingPlan& plan_;
  Runtime& runtime_;
  TraceRecorder recorder_;
  int64_t begin_ = 0, end_ = 0;  // steps to record
};

}  // namespace shardgraph

#endif  // TOOLS_TRAIN_STEP_TRACER_H_
