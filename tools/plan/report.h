// PlanReport: the figures of a plan that `plan` prints, and their formats.
#ifndef TOOLS_PLAN_REPORT_H_
#define TOOLS_PLAN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/train/training_plan.h"
#include "graph/step_plan.h"
#include "proto/target.pb.h"
#include "proto/train.pb.h"
#include "tools/plan/fit.h"
#include "tools/plan/step_time.h"
#include "tools/plan/timeline.h"

namespace shardgraph {

struct LaneUse {
  std::string name;
  int64_t nodes = 0;        // of a step's phases, each counted once
  double busy_seconds = 0;  // of a step
  double idle_share = 0;    // of a step
};

// Of one rank and one training step, unless it says otherwise. Refers to the
// plan and the config.
struct PlanReport {
  std::string config_name;
  const TrainConfig* config = nullptr;  // resolved
  const TrainingPlan* plan = nullptr;
  TargetSpec target;
  int world_size = 1;
  int64_t micro_batches = 1;

  std::vector<StepPhase> step;           // micro, micro@last, update
  std::vector<PhaseTimeline> timelines;  // by phase, by the cost model
  double step_seconds = 0;
  std::vector<LaneUse> lanes;
  CommunicationVolume communication;
  double model_flops = 0;     // graph/model_flops.h
  double executed_flops = 0;  // of products, recomputation included
  int64_t nodes = 0;          // of the plan: all phases, each once
  int64_t events = 0;

  // What shard.recompute=AUTO stands for; absent without it.
  std::optional<RecomputeChoice> recompute;

  // Of a target with a limit: bytes that are missing, and what would fit.
  int64_t missing_bytes = 0;
  std::vector<FittingSetting> fitting;

  double TokensPerSecond() const;  // of all ranks
  // Model FLOPs over the peak of the compute dtype; 0 when that is unknown.
  double Utilization() const;
};

// All but `recompute`, `missing_bytes` and `fitting`.
absl::StatusOr<PlanReport> MakeReport(const std::string& config_name,
                                      const PlanRequest& request,
                                      const TrainingPlan& plan);

// Names of memory kinds, phases and lanes are those of the headers.
std::string TextReport(const PlanReport& report);
// The keys of `plan --format=json`, and "recompute" with AUTO, and "target",
// "world_size", "micro_batches", "phases", "attention" and "time" beside them.
// Bytes, FLOPs and seconds per rank and step.
std::string JsonReport(const PlanReport& report);
// A picture of one micro-batch and the update: one row a lane, memory below.
std::string SvgReport(const PlanReport& report);

// "FULL_SHARD", "HYBRID in groups of 8", "FULL_SHARD resharded to groups of 2".
std::string PrintStrategy(const ShardSpec& shard);
// "1.50 GiB", "317 B".
std::string PrintBytes(double bytes);
// "12,345,678".
std::string PrintCount(int64_t count);
// "1.20 s", "3.45 ms", "12.0 us".
std::string PrintSeconds(double seconds);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_REPORT_H_
