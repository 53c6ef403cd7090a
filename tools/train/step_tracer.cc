#include "tools/train/step_tracer.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/files/durable_file.h"
#include "kernels/status_macros.h"
#include "tools/trace/chrome_trace.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {

// Steps of a run that go before its trace: the eager one, and two to settle.
constexpr int64_t kSettled = 3;

std::unique_ptr<StepTracer> StepTracer::Create(const TrainConfig& config,
                                               const TrainingPlan& plan,
                                               Runtime& runtime) {
  if (config.run().trace_steps() == 0) return nullptr;
  if (runtime.on_gpu()) {
    if (runtime.rank() == 0) {
      std::printf(
          "the graphs of the steps are drawn in %s/graph_*.dot; for their "
          "times use Nsight Systems, which shows phases as NVTX ranges\n",
          config.run().directory().c_str());
    }
    return nullptr;
  }
  return std::unique_ptr<StepTracer>(new StepTracer(config, plan, runtime));
}

StepTracer::StepTracer(const TrainConfig& config, const TrainingPlan& plan,
                       Runtime& runtime)
    : config_(config),
      plan_(plan),
      runtime_(runtime),
      recorder_(plan.plan.num_lanes,
                TraceCapacity(plan.plan,
                              MicroBatches(config.data(), runtime.world_size()),
                              config.run().trace_steps())) {}

void StepTracer::StartRun(int64_t first_step) {
  const RunSpec& run = config_.run();
  begin_ =
      run.trace_first_step() > 0
          ? run.trace_first_step() - 1
          : std::min(first_step + kSettled, run.steps() - run.trace_steps());
  end_ = std::min(begin_ + run.trace_steps(), run.steps());
  begin_ = std::max(begin_, first_step);
}

void StepTracer::BeginStep(int64_t step) {
  if (step >= begin_ && step < end_)
    recorder_.Start(static_cast<int32_t>(step + 1));
}

absl::Status StepTracer::EndStep(int64_t step) {
  if (!recorder_.active()) return absl::OkStatus();
  recorder_.Stop();
  return step + 1 < end_ ? absl::OkStatus() : Write();
}

absl::Status StepTracer::Write() {
  SG_ASSIGN_OR_RETURN(
      const std::vector<std::string> packed,
      runtime_.Collect(PackTrace(TakeTrace(recorder_, runtime_.rank()))));
  if (runtime_.rank() != 0) return absl::OkStatus();
  std::vector<RankTrace> ranks;
  for (const std::string& bytes : packed) {
    SG_ASSIGN_OR_RETURN(RankTrace rank, UnpackTrace(bytes));
    ranks.push_back(std::move(rank));
  }
  const std::string path =
      absl::StrCat(config_.run().directory(), "/trace.json");
  SG_RETURN_IF_ERROR(WriteDurableFile(path, ChromeTrace(plan_.plan, ranks)));
  std::printf("steps %d to %d are in %s\n", static_cast<int>(begin_ + 1),
              static_cast<int>(end_), path.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace shardgraph
