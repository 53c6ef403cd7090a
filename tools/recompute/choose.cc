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
#include "tools/doctor/facts.h"
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
// The same of each that is run in turn with others.
constexpr int64_t kFewestTurns = 4, kMostTurns = 16;
constexpr double kTurnsSeconds = 12;  // of all
// What all arenas may take together of the memory that this host has left.
constexpr double kMemoryShare = 0.5;

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

// A choice that is run in turn with others.
struct Finalist {
  RecomputeChoice choice;
  TrainConfig config;
  std::unique_ptr<TrainingPlan> plan;
  std::unique_ptr<Trial> trial;
  std::vector<double> seconds;  // of its steps, each that of the slowest rank
  double median = 0;
};

class Chooser {
 public:
  Chooser(const PlanRequest& request, Runtime& runtime)
      : request_(request),
        runtime_(runtime),
        micro_batches_(
            MicroBatches(request.config->data(), request.world_size)),
        cost_(request.target) {}

  absl::StatusOr<RecomputeChoice> Run() {
    // By the target's figures; each rank by itself, to the same end.
    SG_ASSIGN_OR_RETURN(
        const RecomputeChoice by_target,
        Choose(CostModel(request_.target),
               absl::StrCat("the target ", request_.target.name())));
    if (runtime_.on_gpu() || by_target.units().empty()) return by_target;
    std::vector<RecomputeChoice> choices = {by_target};
    std::set<std::string> known = {UnitsText(by_target)};
    TrainConfig trial = With(RecomputeChoice());
    trial.mutable_shard()->set_recompute(FULL);
    SG_ASSIGN_OR_RETURN(const bool all_fits, Fits(trial));
    SG_RETURN_IF_ERROR(Try(all_fits ? trial : With(by_target)));
    for (int trials = 1;; ++trials) {
      RecomputeChoice choice;
      if (runtime_.rank() == 0) {
        SG_ASSIGN_OR_RETURN(choice, Choose(Measured(), "this run's trials"));
      }
      SG_ASSIGN_OR_RETURN(choice, FromFirstRank(choice));
      if (!known.insert(UnitsText(choice)).second) break;
      choices.push_back(choice);
      if (trials == kMaxTrials) break;
      SG_RETURN_IF_ERROR(Try(With(choice)));
    }
    return FastestOf(std::move(choices));
  }

 private:
  NodeSeconds Measured() const {
    return [this](const Graph& graph, const Node& node) {
      return cost_.Seconds(graph, node);
    };
  }

  absl::StatusOr<RecomputeChoice> Choose(const NodeSeconds& seconds,
                                         const std::string& times) {
    return ChooseRecompute(
        request_,
        [&](const TrainingPlan& plan) {
          return SecondsOfStep(plan, micro_batches_, seconds);
        },
        times);
  }

  absl::StatusOr<RecomputeChoice> FromFirstRank(const RecomputeChoice& choice) {
    SG_ASSIGN_OR_RETURN(const std::string bytes,
                        runtime_.FromFirstRank(choice.SerializeAsString()));
    RecomputeChoice first;
    first.ParseFromString(bytes);
    return first;
  }

  TrainConfig With(const RecomputeChoice& choice) const {
    TrainConfig config = *request_.config;
    ApplyRecompute(choice, &config);
    return config;
  }

  absl::StatusOr<std::unique_ptr<TrainingPlan>> Plan(
      const TrainConfig& config) const {
    PlanRequest request = request_;
    request.config = &config;
    return MakeTrainingPlan(request);
  }

  absl::StatusOr<bool> Fits(const TrainConfig& config) const {
    SG_ASSIGN_OR_RETURN(const auto plan, Plan(config));
    return plan->plan.memory.arena_bytes <= RecomputeBudget(request_);
  }

  // Of the steps that a trial of the plan runs, by the times known so far.
  absl::StatusOr<double> SecondsOfTrial(const TrainingPlan& plan) const {
    return SecondsOfStep(plan, std::min(micro_batches_, kTrialMicroBatches),
                         Measured());
  }

  // Runs a config and learns its times.
  absl::Status Try(const TrainConfig& config) {
    SG_ASSIGN_OR_RETURN(const auto plan, Plan(config));
    SG_ASSIGN_OR_RETURN(const TrialTimes times,
                        TimeSteps(config, *plan, runtime_));
    if (runtime_.rank() != 0) return absl::OkStatus();
    cost_.Add(plan->plan, times.ranks);
    return Calibrate(*plan, times.step_seconds);
  }

  // Makes a trial's steps of this plan take so long.
  absl::Status Calibrate(const TrainingPlan& plan, double step_seconds) {
    cost_.set_factor(1);
    SG_ASSIGN_OR_RETURN(const double nodes, SecondsOfTrial(plan));
    if (nodes > 0) cost_.set_factor(step_seconds / nodes);
    return absl::OkStatus();
  }

  // How many of them, from the last one on, every host has memory for.
  absl::StatusOr<size_t> HowMany(const std::vector<Finalist>& finalists) {
    const doctor::MemoryFacts memory = doctor::GatherMemory();
    int64_t available = memory.available;
    if (memory.container_limit >= 0)
      available = std::min(available, memory.container_limit);
    const double room = kMemoryShare * static_cast<double>(available) /
                        runtime_.local_world_size();
    double bytes = 0;
    int64_t mine = 0;
    for (size_t i = finalists.size(); i-- > 0; ++mine) {
      bytes += static_cast<double>(finalists[i].plan->plan.memory.arena_bytes);
      if (bytes > room) break;
    }
    SG_ASSIGN_OR_RETURN(const int64_t most, runtime_.Max(-mine));
    return static_cast<size_t>(std::max<int64_t>(1, -most));
  }

  // Steps of all in turn.
  absl::Status RunInTurn(std::vector<Finalist>& finalists) {
    for (Finalist& finalist : finalists) {
      SG_ASSIGN_OR_RETURN(
          finalist.trial,
          Trial::Create(finalist.config, *finalist.plan, runtime_, 0));
      SG_RETURN_IF_ERROR(finalist.trial->WarmUp());
    }
    int64_t turns = kMostTurns;
    double first = 0;
    for (int64_t turn = 0; turn < turns; ++turn) {
      for (size_t i = 0; i < finalists.size(); ++i) {
        // Another order in each turn: no one is always behind the same other.
        Finalist& finalist = finalists[(i + turn) % finalists.size()];
        SG_ASSIGN_OR_RETURN(const double mine, finalist.trial->Step());
        SG_ASSIGN_OR_RETURN(const int64_t slowest,
                            runtime_.Max(static_cast<int64_t>(1e9 * mine)));
        finalist.seconds.push_back(1e-9 * static_cast<double>(slowest));
        if (turn == 0) first += finalist.seconds.back();
      }
      if (turn > 0) continue;
      turns = std::clamp(static_cast<int64_t>(kTurnsSeconds / first),
                         kFewestTurns, kMostTurns);
    }
    for (Finalist& finalist : finalists) {
      finalist.trial = nullptr;
      std::sort(finalist.seconds.begin(), finalist.seconds.end());
      finalist.median = finalist.seconds[finalist.seconds.size() / 2];
    }
    return absl::OkStatus();
  }

  absl::StatusOr<RecomputeChoice> FastestOf(
      std::vector<RecomputeChoice> choices) {
    std::vector<Finalist> finalists;
    for (RecomputeChoice& choice : choices) {
      Finalist& finalist = finalists.emplace_back();
      finalist.config = With(choice);
      finalist.choice = std::move(choice);
      SG_ASSIGN_OR_RETURN(finalist.plan, Plan(finalist.config));
    }
    SG_ASSIGN_OR_RETURN(const size_t count, HowMany(finalists));
    finalists.erase(finalists.begin(), finalists.end() - count);
    SG_RETURN_IF_ERROR(RunInTurn(finalists));
    std::stable_sort(finalists.begin(), finalists.end(),
                     [](const Finalist& a, const Finalist& b) {
                       return a.median < b.median;
                     });
    RecomputeChoice choice = finalists[0].choice;
    if (runtime_.rank() == 0) {
      SG_RETURN_IF_ERROR(Calibrate(*finalists[0].plan, finalists[0].median));
      SG_RETURN_IF_ERROR(SayTimes(finalists, &choice));
    }
    return FromFirstRank(choice);
  }

  // Puts what the turns have shown into the fastest one's choice.
  absl::Status SayTimes(const std::vector<Finalist>& finalists,
                        RecomputeChoice* choice) const {
    const auto say = [this](const TrainingPlan& plan, double factor,
                            RecomputeChoice::Figures* figures) -> absl::Status {
      SG_ASSIGN_OR_RETURN(const double seconds,
                          SecondsOfStep(plan, micro_batches_, Measured()));
      figures->set_step_seconds(factor * seconds);
      return absl::OkStatus();
    };
    choice->set_times("this run's trials");
    SG_RETURN_IF_ERROR(say(*finalists[0].plan, 1, choice->mutable_chosen()));
    choice->clear_runner_up();
    if (finalists.size() > 1) {
      const Finalist& second = finalists[1];
      SG_ASSIGN_OR_RETURN(const double trial, SecondsOfTrial(*second.plan));
      *choice->mutable_runner_up() = second.choice.chosen();
      SG_RETURN_IF_ERROR(say(*second.plan,
                             trial > 0 ? second.median / trial : 1,
                             choice->mutable_runner_up()));
    }
    TrainConfig config = With(RecomputeChoice());
    SG_ASSIGN_OR_RETURN(const auto none, Plan(config));
    SG_RETURN_IF_ERROR(say(*none, 1, choice->mutable_none()));
    config.mutable_shard()->set_recompute(FULL);
    SG_ASSIGN_OR_RETURN(const auto full, Plan(config));
    return say(*full, 1, choice->mutable_full());
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
