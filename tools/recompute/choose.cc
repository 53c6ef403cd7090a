#include "tools/recompute/choose.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "fsdp/files/durable_file.h"
#include "google/protobuf/text_format.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "tools/doctor/facts.h"
#include "tools/plan/cost_model.h"
#include "tools/plan/step_time.h"
#include "tools/recompute/trial.h"
#include "tools/trace/measured_cost.h"
#include "tools/trace/median.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {
namespace {

// Steps of a trial that are timed: as many as fit into its seconds.
constexpr int64_t kFewestSteps = 3, kMostSteps = 8;
constexpr double kTrialSeconds = 2;
// How many are ranked by the times of trials, and the first turns of those that
// are run in turn.
constexpr size_t kFinalists = 5;
constexpr int64_t kFewestTurns = 6;
// No more are run in turn than take about so long, with so many steps each.
constexpr double kTurnsSeconds = 40;
constexpr int64_t kStepsEach = 3 + 2 * kFewestTurns;
// What all arenas may take together of the memory that this host has left.
constexpr double kMemoryShare = 0.5;

// Seconds of a step; on rank 0 the records of all ranks.
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
    SG_ASSIGN_OR_RETURN(seconds.emplace_back(), trial->Step());
    if (step == 0) {
      steps = std::clamp(static_cast<int64_t>(kTrialSeconds / seconds[0]),
                         kFewestSteps, kMostSteps);
    }
  }
  SG_ASSIGN_OR_RETURN(
      const std::vector<std::string> packed,
      runtime.Collect(PackTrace(TakeTrace(trial->recorder(), runtime.rank()))));
  TrialTimes times;
  times.step_seconds = MedianOf(seconds);
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
  std::vector<double> seconds;  // of its steps

  // The mean of the faster half: a machine that others use is slow at times.
  double Undisturbed() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    const size_t half = (sorted.size() + 1) / 2;
    return std::accumulate(sorted.begin(), sorted.begin() + half, 0.0) /
           static_cast<double>(half);
  }
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
        std::vector<RecomputeChoice> tried,
        Rank(CostModel(request_.target),
             absl::StrCat("the target ", request_.target.name()), 1));
    if (runtime_.on_gpu() || tried[0].units().empty()) return tried[0];
    std::set<std::string> known = {UnitsText(tried[0])};
    TrainConfig trial = With(RecomputeChoice());
    trial.mutable_shard()->set_recompute(FULL);
    SG_ASSIGN_OR_RETURN(const bool all_fits, Fits(trial));
    SG_RETURN_IF_ERROR(Try(all_fits ? trial : With(tried[0])));
    for (int trials = 1;; ++trials) {
      std::vector<RecomputeChoice> ranked;
      if (runtime_.rank() == 0) {
        SG_ASSIGN_OR_RETURN(ranked,
                            Rank(Measured(), "this run's trials", kFinalists));
      }
      SG_ASSIGN_OR_RETURN(ranked, FromFirstRank(ranked));
      const bool found = known.insert(UnitsText(ranked[0])).second;
      if (!found || trials == kMaxTrials) {
        std::reverse(tried.begin(), tried.end());
        ranked.insert(ranked.end(), tried.begin(), tried.end());
        return FastestOf(std::move(ranked));
      }
      tried.push_back(ranked[0]);
      SG_RETURN_IF_ERROR(Try(With(ranked[0])));
    }
  }

 private:
  NodeSeconds Measured() const {
    return [this](const Graph& graph, const Node& node) {
      return cost_.Seconds(graph, node);
    };
  }

  absl::StatusOr<std::vector<RecomputeChoice>> Rank(const NodeSeconds& seconds,
                                                    const std::string& times,
                                                    size_t most) {
    return RankRecompute(
        request_,
        [&](const TrainingPlan& plan) {
          return SecondsOfStep(plan, micro_batches_, seconds);
        },
        times, most);
  }

  absl::StatusOr<std::vector<RecomputeChoice>> FromFirstRank(
      const std::vector<RecomputeChoice>& choices) {
    SG_ASSIGN_OR_RETURN(const std::string count,
                        runtime_.FromFirstRank(absl::StrCat(choices.size())));
    size_t number = 0;
    SG_CHECK(absl::SimpleAtoi(count, &number)) << count;
    std::vector<RecomputeChoice> first(number);
    for (size_t i = 0; i < number; ++i) {
      SG_ASSIGN_OR_RETURN(
          const std::string bytes,
          runtime_.FromFirstRank(i < choices.size()
                                     ? choices[i].SerializeAsString()
                                     : std::string()));
      first[i].ParseFromString(bytes);
    }
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
    step_seconds_ = times.step_seconds;
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

  // How many of them, from the first one on, there is time for, and every host
  // has memory for.
  absl::StatusOr<size_t> HowMany(const std::vector<Finalist>& finalists) {
    const doctor::MemoryFacts memory = doctor::GatherMemory();
    int64_t available = memory.available;
    if (memory.container_limit >= 0)
      available = std::min(available, memory.container_limit);
    double room = kMemoryShare * static_cast<double>(available) /
                  runtime_.local_world_size();
    const int64_t most = std::max<int64_t>(
        2, static_cast<int64_t>(kTurnsSeconds / (kStepsEach * step_seconds_)));
    int64_t mine = 0;
    for (const Finalist& finalist : finalists) {
      if (mine == most) break;
      room -= static_cast<double>(finalist.plan->plan.memory.arena_bytes);
      if (room < 0) break;
      ++mine;
    }
    SG_ASSIGN_OR_RETURN(const int64_t least, runtime_.Max(-mine));
    return static_cast<size_t>(std::max<int64_t>(1, -least));
  }

  // Steps of all in turn; then of the faster half alone, twice as many, and so
  // on to the last two. Sorts them: the fastest first.
  absl::Status RunInTurn(std::vector<Finalist>& finalists) {
    // The first to be made gets the memory that trials before it have left in
    // pieces, and is slower for it: that should not be the best one.
    for (size_t i = finalists.size(); i-- > 0;) {
      Finalist& finalist = finalists[i];
      SG_ASSIGN_OR_RETURN(
          finalist.trial,
          Trial::Create(finalist.config, *finalist.plan, runtime_, 0));
      SG_RETURN_IF_ERROR(finalist.trial->WarmUp());
    }
    int64_t turns = 0;  // that have been taken
    for (size_t count = finalists.size();; count = (count + 1) / 2) {
      SG_RETURN_IF_ERROR(TakeTurns(absl::MakeSpan(finalists).first(count),
                                   std::max(kFewestTurns, turns)));
      turns = static_cast<int64_t>(finalists[0].seconds.size());
      std::stable_sort(finalists.begin(), finalists.begin() + count,
                       [](const Finalist& a, const Finalist& b) {
                         return a.Undisturbed() < b.Undisturbed();
                       });
      if (count <= 2) break;
    }
    for (Finalist& finalist : finalists) finalist.trial = nullptr;
    return absl::OkStatus();
  }

  absl::Status TakeTurns(absl::Span<Finalist> finalists, int64_t turns) {
    for (int64_t turn = 0; turn < turns; ++turn) {
      for (size_t i = 0; i < finalists.size(); ++i) {
        // Another order in each turn: no one is always behind the same other.
        Finalist& finalist = finalists[(i + turn) % finalists.size()];
        SG_ASSIGN_OR_RETURN(finalist.seconds.emplace_back(),
                            finalist.trial->Step());
      }
    }
    return absl::OkStatus();
  }

  // Of these, the best by what is known first.
  absl::StatusOr<RecomputeChoice> FastestOf(
      std::vector<RecomputeChoice> choices) {
    std::vector<Finalist> finalists;
    std::set<std::string> known;
    for (RecomputeChoice& choice : choices) {
      if (!known.insert(UnitsText(choice)).second) continue;
      Finalist& finalist = finalists.emplace_back();
      finalist.config = With(choice);
      finalist.choice = std::move(choice);
      SG_ASSIGN_OR_RETURN(finalist.plan, Plan(finalist.config));
    }
    SG_ASSIGN_OR_RETURN(const size_t count, HowMany(finalists));
    finalists.erase(finalists.begin() + count, finalists.end());
    SG_RETURN_IF_ERROR(RunInTurn(finalists));
    std::vector<RecomputeChoice> choice = {finalists[0].choice};
    if (runtime_.rank() == 0) {
      SG_RETURN_IF_ERROR(
          Calibrate(*finalists[0].plan, MedianOf(finalists[0].seconds)));
      SG_RETURN_IF_ERROR(SayTimes(finalists, &choice[0]));
    }
    SG_ASSIGN_OR_RETURN(choice, FromFirstRank(choice));
    return std::move(choice[0]);
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
                             trial > 0 ? MedianOf(second.seconds) / trial : 1,
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
  double step_seconds_ = 1;  // of the last trial
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
