#include "fsdp/train/recompute_choice.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdp/shard/recompute_policy.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// How many points of the front stay, and how many on each side of the first
// that fits are planned.
constexpr size_t kMaxFront = 1024;
constexpr int kAround = 6;
// Kinds that save less than this share of what can be saved are left alone,
// unless nothing else fits.
constexpr double kLeastShare = 0.005;

struct Figures {
  int64_t bytes = 0;
  double seconds = 0;
};

// What a unit can recompute: the empty list is nothing.
struct Option {
  Recompute mode = NONE;
  std::vector<std::string> ops;
  std::string Name() const {
    return mode == NONE   ? "nothing"
           : mode == FULL ? "everything"
                          : absl::StrJoin(ops, ", ");
  }
};

// 0 is nothing, the last one everything.
const std::vector<Option>& Options() {
  static const std::vector<Option>& options = *[] {
    const std::vector<std::vector<std::string>> parts = {
        {"norm"},
        {"pointwise", "random"},
        {"attention", "embedding"},
        {kFeedForward}};
    auto* const options = new std::vector<Option>(1);
    for (int set = 1; set < 1 << parts.size(); ++set) {
      Option option = {.mode = SELECTIVE};
      for (size_t i = 0; i < parts.size(); ++i) {
        if ((set >> i & 1) != 0)
          option.ops.insert(option.ops.end(), parts[i].begin(), parts[i].end());
      }
      options->push_back(std::move(option));
    }
    options->push_back({.mode = FULL});
    return options;
  }();
  return options;
}
constexpr int kNothing = 0;
int Everything() { return static_cast<int>(Options().size()) - 1; }

// The option of each unit.
using Assignment = std::vector<int>;

// `plan` recomputes nothing.
std::string KeyOf(const TrainingPlan& plan, int64_t budget) {
  return absl::StrCat(plan.plan.hash, " ", budget);
}

// Of one unit, on top of nothing.
struct Item {
  int option = kNothing;
  int64_t saved = 0;
  double cost = 0;
};

struct Kind {
  std::vector<int> units;   // in program order
  std::vector<Item> items;  // none both larger and slower than another; the
                            // first is nothing, then ever more is saved
};

struct Point {
  int64_t saved = 0;
  double cost = 0;
  std::vector<std::vector<int>> counts;  // by kind and item
};

// Fewer bytes cost more: from each pair the better one stays.
void KeepFront(std::vector<Point>* points) {
  std::stable_sort(points->begin(), points->end(),
                   [](const Point& a, const Point& b) {
                     return std::make_tuple(a.cost, -a.saved) <
                            std::make_tuple(b.cost, -b.saved);
                   });
  std::vector<Point> front;
  for (Point& point : *points) {
    if (front.empty() || point.saved > front.back().saved)
      front.push_back(std::move(point));
  }
  if (front.size() > kMaxFront) {
    std::vector<Point> thin;
    for (size_t i = 0; i < kMaxFront; ++i)
      thin.push_back(front[i * (front.size() - 1) / (kMaxFront - 1)]);
    front = std::move(thin);
  }
  *points = std::move(front);
}

class Chooser {
 public:
  Chooser(const PlanRequest& request, const StepSeconds& seconds)
      : request_(request), seconds_(seconds) {
    request_.verify = false;
    budget_ = RecomputeBudget(request);
  }

  absl::StatusOr<std::vector<RecomputeChoice>> Run(const std::string& times,
                                                   size_t most) {
    if (budget_ == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "shard.recompute is AUTO, but shard.memory_budget_bytes is 0 and the "
          "target ",
          request_.target.name(),
          " does not say how much memory there is; set "
          "shard.memory_budget_bytes to what a rank may take"));
    }
    SG_RETURN_IF_ERROR(FindUnits());
    SG_ASSIGN_OR_RETURN(none_, Plan(All(kNothing)));
    SG_ASSIGN_OR_RETURN(full_, Plan(All(Everything())));
    Assignment best = All(kNothing);
    if (none_.bytes > budget_) {
      SG_RETURN_IF_ERROR(Search());
      best = Best(nullptr);
      if (planned_.at(best).bytes > budget_) return NothingFits(best);
      SG_RETURN_IF_ERROR(Cheapen(&best));
    }
    std::vector<RecomputeChoice> choices = {Describe(best, times)};
    for (const Assignment& next : NextBest(best, most - 1))
      choices.push_back(Describe(next, times));
    return choices;
  }

 private:
  Assignment All(int option) const { return Assignment(names_.size(), option); }
  bool Fits(const Assignment& assignment) const {
    return planned_.at(assignment).bytes <= budget_;
  }

  // The units by name, and which are alike.
  absl::Status FindUnits() {
    SG_ASSIGN_OR_RETURN(const auto plan, PlanOf({}));
    key_ = KeyOf(*plan, budget_);
    std::map<std::string, int> ids;
    std::vector<std::pair<std::string, std::vector<Dims>>> alike;
    for (const ShardUnit& unit : plan->layout.units()) {
      const std::string& name = unit.module->name();
      if (name.empty()) continue;
      const auto [id, added] = ids.emplace(name, names_.size());
      if (added) {
        names_.push_back(name);
        alike.push_back({unit.module->class_name(), {}});
      }
      for (const FlatMember& member : unit.flat.members)
        alike[id->second].second.push_back(member.parameter->shape);
    }
    std::vector<std::vector<int>> groups;
    std::map<std::pair<std::string, std::vector<Dims>>, size_t> group_of;
    for (size_t i = 0; i < names_.size(); ++i) {
      const auto [group, added] = group_of.emplace(alike[i], groups.size());
      if (added) groups.emplace_back();
      groups[group->second].push_back(static_cast<int>(i));
    }
    for (std::vector<int>& group : groups) {
      if (group.size() == 1) {
        kinds_.push_back({.units = group});
        continue;
      }
      const int last = group.back();
      group.pop_back();
      kinds_.push_back({.units = group});
      kinds_.push_back({.units = {last}});
    }
    return absl::OkStatus();
  }

  std::vector<RecomputeUnits> RulesOf(const Assignment& assignment) const {
    std::map<int, std::vector<std::string>> names;
    for (size_t i = 0; i < assignment.size(); ++i) {
      if (assignment[i] != kNothing) names[assignment[i]].push_back(names_[i]);
    }
    std::vector<RecomputeUnits> rules;
    for (const auto& [option, of] : names) {
      RecomputeUnits& rule = rules.emplace_back();
      rule.set_pattern(UnitPattern(of));
      rule.set_recompute(Options()[option].mode);
      for (const std::string& op : Options()[option].ops)
        rule.add_recompute_ops(op);
    }
    return rules;
  }

  absl::StatusOr<std::unique_ptr<TrainingPlan>> PlanOf(
      const Assignment& assignment) {
    RecomputeChoice choice;
    for (RecomputeUnits& rule : RulesOf(assignment))
      *choice.add_units() = std::move(rule);
    TrainConfig config = *request_.config;
    ApplyRecompute(choice, &config);
    PlanRequest request = request_;
    request.config = &config;
    return MakeTrainingPlan(request);
  }

  absl::StatusOr<Figures> Plan(const Assignment& assignment) {
    const auto known = planned_.find(assignment);
    if (known != planned_.end()) return known->second;
    SG_ASSIGN_OR_RETURN(const auto plan, PlanOf(assignment));
    Figures figures;
    figures.bytes = plan->plan.memory.arena_bytes;
    SG_ASSIGN_OR_RETURN(figures.seconds, seconds_(*plan));
    planned_.emplace(assignment, figures);
    return figures;
  }

  // The fastest that fits, but for `without`; the smallest when none does.
  Assignment Best(const Assignment* without) const {
    const Assignment* best = nullptr;
    const auto rank = [this](const Figures& figures) {
      const bool fits = figures.bytes <= budget_;
      return std::make_tuple(fits ? 0 : 1, fits ? figures.seconds : 0.0,
                             figures.bytes);
    };
    for (const auto& [assignment, figures] : planned_) {
      if (without != nullptr && assignment == *without) continue;
      if (best == nullptr || rank(figures) < rank(planned_.at(*best)))
        best = &assignment;
    }
    return best == nullptr ? Assignment() : *best;
  }

  // How many units of each kind have each option.
  std::vector<std::map<int, int>> Counts(const Assignment& assignment) const {
    std::vector<std::map<int, int>> counts;
    for (const Kind& kind : kinds_) {
      std::map<int, int>& count = counts.emplace_back();
      for (int unit : kind.units) ++count[assignment[unit]];
    }
    return counts;
  }

  // The fastest that fit behind `best`, each with other counts.
  std::vector<Assignment> NextBest(const Assignment& best, size_t most) const {
    std::vector<const Assignment*> fitting;
    for (const auto& [assignment, figures] : planned_) {
      if (Fits(assignment)) fitting.push_back(&assignment);
    }
    std::stable_sort(fitting.begin(), fitting.end(),
                     [this](const Assignment* a, const Assignment* b) {
                       return planned_.at(*a).seconds < planned_.at(*b).seconds;
                     });
    std::set<std::vector<std::map<int, int>>> known = {Counts(best)};
    std::vector<Assignment> next;
    for (const Assignment* assignment : fitting) {
      if (next.size() == most) break;
      if (known.insert(Counts(*assignment)).second) next.push_back(*assignment);
    }
    return next;
  }

  // Stage 1: what each option does to one unit of the kind.
  absl::Status Measure(double least, Kind* kind) {
    const auto figures = [&](int option) {
      Assignment assignment = All(kNothing);
      for (int unit : kind->units) assignment[unit] = option;
      return Plan(assignment);
    };
    kind->items = {Item()};
    SG_ASSIGN_OR_RETURN(const Figures everything, figures(Everything()));
    if (static_cast<double>(none_.bytes - everything.bytes) < least)
      return absl::OkStatus();
    const int64_t count = static_cast<int64_t>(kind->units.size());
    std::vector<Item> items;
    for (int option = 1; option <= Everything(); ++option) {
      SG_ASSIGN_OR_RETURN(const Figures with, figures(option));
      const Item item = {
          option, (none_.bytes - with.bytes) / count,
          (with.seconds - none_.seconds) / static_cast<double>(count)};
      if (item.saved > 0) items.push_back(item);
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const Item& a, const Item& b) {
                       return std::make_tuple(a.cost, -a.saved) <
                              std::make_tuple(b.cost, -b.saved);
                     });
    for (const Item& item : items) {
      if (item.saved > kind->items.back().saved) kind->items.push_back(item);
    }
    return absl::OkStatus();
  }

  // Sums of one item for each unit; counts alone tell choices apart.
  std::vector<Point> Knapsack() const {
    Point origin;
    for (const Kind& kind : kinds_)
      origin.counts.emplace_back(kind.items.size(), 0);
    std::vector<Point> front = {origin};
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const Kind& kind = kinds_[k];
      if (kind.items.size() == 1) continue;
      for (size_t unit = 0; unit < kind.units.size(); ++unit) {
        std::vector<Point> next;
        for (const Point& point : front) {
          for (size_t i = 0; i < kind.items.size(); ++i) {
            Point more = point;
            ++more.counts[k][i];
            more.saved += kind.items[i].saved;
            more.cost += kind.items[i].cost;
            next.push_back(std::move(more));
          }
        }
        KeepFront(&next);
        front = std::move(next);
      }
    }
    return front;
  }

  // Units of a kind in order: the most saving items first.
  Assignment AssignmentOf(const Point& point) const {
    Assignment assignment = All(kNothing);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const Kind& kind = kinds_[k];
      size_t unit = 0;
      for (size_t i = kind.items.size(); i-- > 1;) {
        for (int n = 0; n < point.counts[k][i]; ++n)
          assignment[kind.units[unit++]] = kind.items[i].option;
      }
    }
    return assignment;
  }

  // Stages 1 and 2: everything worth a look is planned.
  absl::Status Search() {
    const double all = static_cast<double>(none_.bytes - full_.bytes);
    for (Kind& kind : kinds_)
      SG_RETURN_IF_ERROR(Measure(std::max(1.0, kLeastShare * all), &kind));
    const std::vector<Point> front = Knapsack();
    const auto fits = [&](int i) -> absl::StatusOr<bool> {
      SG_ASSIGN_OR_RETURN(const Figures figures, Plan(AssignmentOf(front[i])));
      return figures.bytes <= budget_;
    };
    const int size = static_cast<int>(front.size());
    int low = 0, high = size;  // the first that fits, `size` if none does
    while (low < high) {
      const int middle = (low + high) / 2;
      SG_ASSIGN_OR_RETURN(const bool enough, fits(middle));
      (enough ? high : low) = enough ? middle : middle + 1;
    }
    for (int i = std::max(0, low - kAround); i < std::min(size, low + kAround);
         ++i)
      SG_RETURN_IF_ERROR(fits(i).status());
    return absl::OkStatus();
  }

  // Stage 3.
  absl::Status Cheapen(Assignment* best) {
    for (bool better = true; better;) {
      better = false;
      const Assignment from = *best;
      for (const Kind& kind : kinds_) {
        // Units with one option are alike: the last of them is tried.
        std::map<int, int> last;
        for (int unit : kind.units) last[from[unit]] = unit;
        for (const auto& [option, unit] : last) {
          for (const Item& item : kind.items) {
            if (item.option == option) continue;
            Assignment changed = from;
            changed[unit] = item.option;
            SG_RETURN_IF_ERROR(Plan(changed).status());
          }
        }
      }
      const Assignment found = Best(nullptr);
      better = planned_.at(found).seconds < planned_.at(from).seconds;
      if (better) *best = found;
    }
    return absl::OkStatus();
  }

  absl::Status NothingFits(const Assignment& smallest) const {
    const ShardSpec& shard = request_.config->shard();
    const int64_t least = planned_.at(smallest).bytes;
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.recompute is AUTO, but nothing fits ",
        shard.memory_budget_bytes() > 0
            ? "shard.memory_budget_bytes"
            : absl::StrCat("the memory of the target ", request_.target.name()),
        " = ", budget_, " bytes: a rank needs ", least,
        " at least, whatever it recomputes; raise the budget to that, lower "
        "data.micro_batch_size (",
        request_.config->data().micro_batch_size(),
        ") or data.sequence_length (",
        request_.config->data().sequence_length(),
        "), or train with shard.strategy=FULL_SHARD on more ranks"));
  }

  RecomputeChoice::Figures FiguresOf(const Assignment& assignment) const {
    RecomputeChoice::Figures figures;
    figures.set_what(Words(assignment));
    figures.set_arena_bytes(planned_.at(assignment).bytes);
    figures.set_step_seconds(planned_.at(assignment).seconds);
    return figures;
  }

  // "model.layers.0 .. model.layers.5 (6): norm; ...".
  std::string Words(const Assignment& assignment) const {
    std::vector<std::string> runs;
    for (size_t i = 0; i < assignment.size();) {
      size_t end = i + 1;
      while (end < assignment.size() && assignment[end] == assignment[i]) ++end;
      if (assignment[i] != kNothing) {
        runs.push_back(
            absl::StrCat(names_[i],
                         end == i + 1 ? ""
                                      : absl::StrCat(" .. ", names_[end - 1],
                                                     " (", end - i, " units)"),
                         ": ", Options()[assignment[i]].Name()));
      }
      i = end;
    }
    return runs.empty() ? "nothing" : absl::StrJoin(runs, "; ");
  }

  RecomputeChoice Describe(const Assignment& best, const std::string& times) {
    RecomputeChoice choice;
    choice.set_key(key_);
    choice.set_budget_bytes(budget_);
    for (RecomputeUnits& rule : RulesOf(best))
      *choice.add_units() = std::move(rule);
    *choice.mutable_chosen() = FiguresOf(best);
    *choice.mutable_none() = FiguresOf(All(kNothing));
    *choice.mutable_full() = FiguresOf(All(Everything()));
    const Assignment next = Best(&best);
    if (!next.empty() && Fits(next))
      *choice.mutable_runner_up() = FiguresOf(next);
    choice.set_plans(static_cast<int>(planned_.size()));
    choice.set_times(times);
    return choice;
  }

  PlanRequest request_;
  const StepSeconds& seconds_;
  int64_t budget_ = 0;
  std::string key_;
  std::vector<std::string> names_;  // of units
  std::vector<Kind> kinds_;
  std::map<Assignment, Figures> planned_;
  Figures none_, full_;
};

}  // namespace

int64_t RecomputeBudget(const PlanRequest& request) {
  const int64_t budget = request.config->shard().memory_budget_bytes();
  return budget > 0 ? budget : request.target.memory_bytes();
}

absl::StatusOr<RecomputeChoice> ChooseRecompute(const PlanRequest& request,
                                                const StepSeconds& seconds,
                                                const std::string& times) {
  SG_ASSIGN_OR_RETURN(std::vector<RecomputeChoice> choices,
                      RankRecompute(request, seconds, times, 1));
  return std::move(choices[0]);
}

absl::StatusOr<std::vector<RecomputeChoice>> RankRecompute(
    const PlanRequest& request, const StepSeconds& seconds,
    const std::string& times, size_t most) {
  return Chooser(request, seconds).Run(times, most);
}

absl::StatusOr<std::string> RecomputeKey(const PlanRequest& request) {
  TrainConfig config = *request.config;
  ApplyRecompute(RecomputeChoice(), &config);
  PlanRequest nothing = request;
  nothing.config = &config;
  nothing.verify = false;
  SG_ASSIGN_OR_RETURN(const auto plan, MakeTrainingPlan(nothing));
  return KeyOf(*plan, RecomputeBudget(request));
}

void ApplyRecompute(const RecomputeChoice& choice, TrainConfig* config) {
  ShardSpec* shard = config->mutable_shard();
  shard->set_recompute(NONE);
  shard->clear_recompute_ops();
  shard->clear_memory_budget_bytes();
  *shard->mutable_recompute_units() = choice.units();
}

std::string DescribeRecompute(const RecomputeChoice& choice) {
  const auto megabytes = [](int64_t bytes) {
    return absl::StrFormat("%.4g MB", static_cast<double>(bytes) / 1e6);
  };
  const auto figures = [&](const RecomputeChoice::Figures& of) {
    return absl::StrFormat(
        "%s, %.4g ms a step%s", megabytes(of.arena_bytes()),
        1e3 * of.step_seconds(),
        of.arena_bytes() <= choice.budget_bytes()
            ? ""
            : absl::StrCat(", ",
                           megabytes(of.arena_bytes() - choice.budget_bytes()),
                           " too much"));
  };
  std::string text = absl::StrCat(
      "recompute AUTO: at most ", megabytes(choice.budget_bytes()),
      " of a rank's arena, by the times of ", choice.times(), "\n");
  for (const auto& [what, of] : {std::pair("chosen", &choice.chosen()),
                                 {"next best", &choice.runner_up()},
                                 {"without", &choice.none()},
                                 {"with all", &choice.full()}}) {
    if (of->what().empty()) continue;
    absl::StrAppendFormat(&text, "  %-9s  %s  (%s)\n", what, figures(*of),
                          of->what());
  }
  return text;
}

}  // namespace shardgraph
