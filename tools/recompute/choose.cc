#include "tools/recompute/choose.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/files/durable_file.h"
#include "google/protobuf/text_format.h"
#include "kernels/status_macros.h"
#include "tools/plan/cost_model.h"
#include "tools/plan/step_time.h"
#include "tools/recompute/trial.h"
#include "tools/trace/measured_cost.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {
namespace {

// Steps of a trial that are timed: as many as fit into its seconds.
constexpr int64_t kFewestSteps = 3, kMostSteps = 8;
constexpr double kTrialSeconds = 2;

// Seconds of a step and the records of all ranks; on rank 0.
struct TrialTimes {
  double step_seconds = 0;
  std::vector<RankTrace> ranks;
};

absl::StatusOr<TrialTimes> TimeSteps(const TrainConfig& config,
                                     const TrainingPlan& plan,
                                     Runtime& runtime) {
  SG_ASSIGN_OR_RETURN(const auto trial,
                      Trial::Create(config, plan, runtime, kMostSteps));
  SG_RETURN_IF_ERROR(trial->WarmUp());
  std::vector<double> seconds;
  int64_t steps = kMostSteps;
  for (int64_t step = 0; step < steps; ++step) {
    SG_ASSIGN_OR_RETURN(const double mine, trial->Step());
    SG_ASSIGN_OR_RETURN(const int64_t slowest,
                        runtime.Max(static_cast<int64_t>(1e9 * mine)));
    seconds.push_back(1e-9 * static_cast<double>(slowest));
    if (step == 0) {
      steps = std::clamp(static_cast<int64_t>(kTrialSeconds / seconds[0]),
                         kFewestSteps, kMostSteps);
    }
  }
  SG_ASSIGN_OR_RETURN(
      const std::vector<std::string> packed,
      runtime.Collect(PackTrace(TakeTrace(trial->recorder(), runtime.rank()))));
  TrialTimes times;
  std::sort(seconds.begin(), seconds.end());
  times.step_seconds = seconds[seconds.size() / 2];
  for (const std::string& bytes : packed) {
    SG_ASSIGN_OR_RETURN(times.ranks.emplace_back(), UnpackTrace(bytes));
  }
  return times;
}

std::string UnitsText(const RecomputeChoice& choice) {
  std::string text;
  for (const RecomputeUnits& unit : choice.units())
    absl::StrAppend(&text, unit.SerializeAsString(), ";");
  return text;
}

class Chooser {
 public:
  Chooser(const PlanRequest& request, Runtime& runtime)
      : request_(request),
        runtime_(runtime),
        micro_batches_(
            MicroBatches(request.config->data(), request.world_size)),
        cost_(request.target) {}

  absl::StatusOr<RecomputeChoice> Run() {
    SG_ASSIGN_OR_RETURN(const bool all_kept, Fits(With(RecomputeChoice())));
    TrainConfig trial = With(RecomputeChoice());
    trial.mutable_shard()->set_recompute(FULL);
    SG_ASSIGN_OR_RETURN(const bool none_kept, Fits(trial));
    RecomputeChoice choice;
    std::set<std::string> tried;
    if (all_kept || !none_kept || runtime_.on_gpu()) {
      // By the target's figures; each rank by itself, to the same end.
      SG_ASSIGN_OR_RETURN(
          choice, Choose(CostModel(request_.target),
                         absl::StrCat("the target ", request_.target.name())));
      if (all_kept || runtime_.on_gpu()) return choice;
      trial = With(choice);
      tried.insert(UnitsText(choice));
    }
    SG_RETURN_IF_ERROR(Try(trial));
    for (int trials = 1;; ++trials) {
      std::string bytes;
      if (runtime_.rank() == 0) {
        SG_ASSIGN_OR_RETURN(choice,
                            Choose(
                                [this](const Graph& graph, const Node& node) {
                                  return cost_.Seconds(graph, node);
                                },
                                "this run's trials"));
        bytes = choice.SerializeAsString();
      }
      SG_ASSIGN_OR_RETURN(bytes, runtime_.FromFirstRank(bytes));
      choice.ParseFromString(bytes);
      if (trials == kMaxTrials || !tried.insert(UnitsText(choice)).second)
        return choice;
      SG_RETURN_IF_ERROR(Try(With(choice)));
    }
  }

 private:
  absl::StatusOr<RecomputeChoice> Choose(const NodeSeconds& seconds,
                                         const std::string& times) {
    return ChooseRecompute(
        request_,
        [&](const TrainingPlan& plan) {
          return SecondsOfStep(plan, micro_batches_, seconds);
        },
        times);
  }

  TrainConfig With(const RecomputeChoice& choice) const {
    TrainConfig config = *request_.config;
    ApplyRecompute(choice, &config);
    return config;
  }

  absl::StatusOr<bool> Fits(const TrainConfig& config) const {
    PlanRequest request = request_;
    request.config = &config;
    request.verify = false;
    SG_ASSIGN_OR_RETURN(const auto plan, MakeTrainingPlan(request));
    return plan->plan.memory.arena_bytes <= RecomputeBudget(request_);
  }

  // Runs a config and learns its times.
  absl::Status Try(const TrainConfig& config) {
    PlanRequest request = request_;
    request.config = &config;
    SG_ASSIGN_OR_RETURN(const auto plan, MakeTrainingPlan(request));
    SG_ASSIGN_OR_RETURN(const TrialTimes times,
                        TimeSteps(config, *plan, runtime_));
    if (runtime_.rank() != 0) return absl::OkStatus();
    cost_.Add(plan->plan, times.ranks);
    cost_.set_factor(1);
    SG_ASSIGN_OR_RETURN(
        const double nodes,
        SecondsOfStep(*plan, std::min(micro_batches_, kTrialMicroBatches),
                      [this](const Graph& graph, const Node& node) {
                        return cost_.Seconds(graph, node);
                      }));
    if (nodes > 0) cost_.set_factor(times.step_seconds / nodes);
    return absl::OkStatus();
  }

  const PlanRequest& request_;
  Runtime& runtime_;
  const int64_t micro_batches_;
  MeasuredCost cost_;
};

}  // namespace

absl::StatusOr<RecomputeChoice> ChooseByTrials(const PlanRequest& request,
                                               Runtime& runtime) {
  return Chooser(request, runtime).Run();
}

absl::StatusOr<RecomputeChoice> ChooseOnce(const PlanRequest& request,
                                           const std::string& file,
                                           Runtime& runtime) {
  std::string stored;
  if (runtime.rank() == 0) {
    const absl::StatusOr<std::string> text = ReadWholeFile(file);
    RecomputeChoice before;
    SG_ASSIGN_OR_RETURN(const std::string key, RecomputeKey(request));
    if (text.ok() &&
        google::protobuf::TextFormat::ParseFromString(*text, &before) &&
        before.key() == key) {
      stored = before.SerializeAsString();
    }
  }
  SG_ASSIGN_OR_RETURN(stored, runtime.FromFirstRank(stored));
  RecomputeChoice choice;
  if (!stored.empty()) {
    choice.ParseFromString(stored);
    return choice;
  }
  SG_ASSIGN_OR_RETURN(choice, ChooseByTrials(request, runtime));
  if (runtime.rank() == 0) {
    std::string text;
    google::protobuf::TextFormat::PrintToString(choice, &text);
    SG_RETURN_IF_ERROR(WriteDurableFile(file, text));
  }
  return choice;
}

}  // namespace shardgraph
