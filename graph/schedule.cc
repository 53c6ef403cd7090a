// Schedule: order and lanes first, then for each node the fewest edges that
// imply all it waits for.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/dependencies.h"
#include "graph/order.h"
#include "graph/passes.h"
#include "graph/prefetch.h"
#include "kernels/check.h"

namespace shardgraph {
namespace {

// Lane of a kind on a target with so many lanes.
int32_t LaneOf(LaneKind kind, int lanes) {
  return std::min(static_cast<int32_t>(kind), lanes - 1);
}

// The latest node that a node waits for on some lane.
struct Source {
  int32_t position = kNone;
  EdgeKind kind = EdgeKind::kData;
};

PhaseSchedule SchedulePhase(const Graph& graph, PhaseId id, int lanes,
                            const ScheduleOptions& options) {
  const Phase& phase = graph.phases[id];
  const std::vector<Dependencies> dependencies = DependenciesOf(graph, phase);
  PrefetchPlan plan;
  if (lanes > 1) {
    plan = PlanPrefetch(graph, phase, dependencies, options);
  } else {
    plan.order.resize(phase.nodes.size());
    std::iota(plan.order.begin(), plan.order.end(), 0);
  }

  PhaseSchedule schedule;
  schedule.phase = id;
  std::vector<int32_t> position(phase.nodes.size());
  for (size_t p = 0; p < plan.order.size(); ++p) {
    position[plan.order[p]] = static_cast<int32_t>(p);
    const NodeId node = phase.nodes[plan.order[p]];
    schedule.order.push_back(node);
    schedule.lanes.push_back(LaneOf(graph.nodes[node].lane, lanes));
  }

  LaneClocks clocks;
  for (int32_t p = 0; p < static_cast<int32_t>(schedule.order.size()); ++p) {
    const int32_t index = plan.order[p];
    std::array<Source, kMaxLanes> sources;
    const auto wait_for = [&](int32_t from, EdgeKind kind) {
      SG_CHECK(position[from] < p)
          << PrintNode(graph, schedule.order[p]) << " comes before "
          << PrintNode(graph, phase.nodes[from]) << ", which it waits for";
      Source& source = sources[schedule.lanes[position[from]]];
      if (position[from] > source.position)
        source = Source{position[from], kind};
    };
    for (int32_t from : dependencies[index]) {
      if (from != kNone) wait_for(from, EdgeKind::kData);
    }
    const auto [first, last] = std::equal_range(
        plan.waits.begin(), plan.waits.end(), ExtraWait{0, index, {}},
        [](const ExtraWait& a, const ExtraWait& b) { return a.to < b.to; });
    for (auto wait = first; wait != last; ++wait)
      wait_for(wait->from, wait->kind);

    clocks.Append(schedule.lanes[p]);
    const LaneClock own = clocks.clock(p);
    std::vector<Source> needed;
    for (int lane = 0; lane < lanes; ++lane) {
      const Source& source = sources[lane];
      if (source.position == kNone || lane == schedule.lanes[p] ||
          own[lane] > clocks.index(source.position)) {
        continue;
      }
      const bool implied =
          std::any_of(sources.begin(), sources.end(), [&](const Source& other) {
            return other.position != kNone &&
                   other.position != source.position &&
                   clocks.Before(source.position, other.position);
          });
      if (!implied) needed.push_back(source);
    }
    std::sort(needed.begin(), needed.end(),
              [](const Source& a, const Source& b) {
                return a.position < b.position;
              });
    for (const Source& source : needed) {
      schedule.edges.push_back(
          {schedule.order[source.position], schedule.order[p], source.kind});
      clocks.Wait(source.position);
    }
  }
  return schedule;
}

}  // namespace

absl::StatusOr<std::vector<PhaseSchedule>> Schedule(
    const Graph& graph, const TargetSpec& target,
    const ScheduleOptions& options) {
  if (target.lanes() < 1 || target.lanes() > kMaxLanes) {
    return absl::InvalidArgumentError(
        absl::StrCat("target \"", target.name(), "\": lanes is ",
                     target.lanes(), "; allowed are 1 (one for all) to ",
                     kMaxLanes, " (compute, gather, reduce, copy)"));
  }
  if (options.prefetch < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("prefetch is ", options.prefetch,
                     "; it counts units and is at least 0"));
  }
  if (options.max_units_in_flight < options.prefetch + 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_units_in_flight is ", options.max_units_in_flight,
        " with prefetch ", options.prefetch, "; it must be at least ",
        options.prefetch + 1,
        ": the unit that computes and those gathered ahead of it"));
  }
  std::vector<PhaseSchedule> schedules;
  for (size_t p = 0; p < graph.phases.size(); ++p) {
    schedules.push_back(
        SchedulePhase(graph, static_cast<PhaseId>(p), target.lanes(), options));
  }
  return schedules;
}

}  // namespace shardgraph
