#include "tools/trace/step_times.h"

#include <algorithm>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/op_table.h"

namespace shardgraph {
namespace {

using Events = std::vector<TraceEvent>;

// When each node ran, in order, by NodeId.
using Runs = std::vector<Events>;

Runs RunsOf(const StepPlan& plan, const RankTrace& rank) {
  Runs runs(plan.graph.nodes.size());
  for (const Events& lane : rank.lanes) {
    for (const TraceEvent& event : lane) runs[event.id].push_back(event);
  }
  return runs;
}

// What a phase's runs lie between: begins at the host's enqueueing it.
struct Window {
  int64_t begin;
  int64_t end;
};

std::vector<Window> WindowsOf(const Events& host, const TraceEvent& step) {
  std::vector<Window> windows;
  for (const TraceEvent& event : host) {
    if (event.step != step.step || event.id < 0) continue;
    if (!windows.empty()) windows.back().end = event.begin;
    windows.push_back({event.begin, step.end});
  }
  return windows;
}

class RankTimes {
 public:
  RankTimes(const StepPlan& plan, absl::Span<const Runs> all, int rank)
      : plan_(plan), all_(all), rank_(rank), before_(plan.graph.nodes.size()) {
    for (const PhaseSchedule& schedule : plan.schedules) {
      for (const Edge& edge : schedule.edges)
        before_[edge.to].push_back(edge.from);
    }
  }

  void Add(const RankTrace& trace, StepTimes* times) {
    std::vector<std::vector<size_t>> seen(
        trace.lanes.size(), std::vector<size_t>(plan_.graph.nodes.size()));
    std::vector<size_t> next(trace.lanes.size());
    for (const TraceEvent& step : trace.host) {
      if (step.id != TraceEvent::kStep) continue;
      times->seconds += Seconds(step.end - step.begin);
      const std::vector<Window> windows = WindowsOf(trace.host, step);
      for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
        LaneTimes& sums = times->lanes[lane];
        double accounted = -Sum(sums);
        int64_t at = step.begin;
        for (const Window& window : windows) {
          const Events& events = trace.lanes[lane];
          at = std::max(at, window.begin);
          for (size_t& i = next[lane];
               i < events.size() && events[i].begin < window.end; ++i) {
            const TraceEvent& event = events[i];
            AddEvent(event, seen[lane][event.id]++, at, &sums);
            at = event.end;
          }
          const int64_t last = LastEnd(trace, window);
          sums.waits += Seconds(std::max<int64_t>(0, last - at));
          at = std::max(at, last);
        }
        accounted += Sum(sums);
        sums.engine += Seconds(step.end - step.begin) - accounted;
      }
    }
  }

 private:
  static double Seconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

  static double Sum(const LaneTimes& lane) {
    double sum = lane.peers + lane.waits + lane.queued;
    for (const auto& [family, seconds] : lane.families) sum += seconds;
    return sum;
  }

  static int64_t LastEnd(const RankTrace& trace, const Window& window) {
    int64_t last = window.begin;
    for (const Events& events : trace.lanes) {
      const auto after = std::lower_bound(
          events.begin(), events.end(), window.end,
          [](const TraceEvent& e, int64_t time) { return e.begin < time; });
      if (after != events.begin())
        last = std::max(last, std::min((after - 1)->end, window.end));
    }
    return last;
  }

  // The lane has been free since `at`.
  void AddEvent(const TraceEvent& event, size_t run, int64_t at,
                LaneTimes* sums) const {
    int64_t ready = at;
    for (NodeId from : before_[event.id])
      ready = std::max(ready, all_[rank_][from][run].end);
    ready = std::min(ready, event.begin);
    sums->waits += Seconds(ready - at);
    // What the thread ran while it waited counts as the engine's too.
    sums->queued +=
        Seconds(std::max<int64_t>(0, event.begin - ready - event.ran_before));
    const OpDef& op = *plan_.graph.nodes[event.id].op;
    int64_t begin = event.begin;
    if (op.lane != LaneKind::kCompute && op.lane != LaneKind::kCopy) {
      for (const Runs& runs : all_)
        begin = std::max(begin, runs[event.id][run].begin);
      begin = std::min(begin, event.end);
    }
    sums->peers += Seconds(begin - event.begin);
    sums->families[std::string(FamilyOf(op.name))] +=
        Seconds(event.end - begin);
  }

  const StepPlan& plan_;
  const absl::Span<const Runs> all_;
  const int rank_;
  std::vector<std::vector<NodeId>> before_;  // on other lanes
};

int64_t StepsIn(absl::Span<const RankTrace> ranks) {
  return std::count_if(
      ranks[0].host.begin(), ranks[0].host.end(),
      [](const TraceEvent& event) { return event.id == TraceEvent::kStep; });
}

}  // namespace

StepTimes StepTimesOf(const StepPlan& plan, absl::Span<const RankTrace> ranks) {
  std::vector<Runs> all;
  for (const RankTrace& rank : ranks) all.push_back(RunsOf(plan, rank));
  for (const Runs& runs : all) {
    for (size_t id = 0; id < runs.size(); ++id) {
      SG_CHECK_EQ(runs[id].size(), all[0][id].size())
          << "the ranks recorded different steps";
    }
  }
  StepTimes times;
  times.lanes.resize(plan.num_lanes);
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    RankTimes(plan, all, static_cast<int>(rank)).Add(ranks[rank], &times);
  const double count = static_cast<double>(StepsIn(ranks) * ranks.size());
  times.seconds /= count;
  for (LaneTimes& lane : times.lanes) {
    for (auto& [family, seconds] : lane.families) seconds /= count;
    lane.peers /= count;
    lane.waits /= count;
    lane.queued /= count;
    lane.engine /= count;
  }
  return times;
}

std::vector<NodeTimes> NodeTimesOf(const StepPlan& plan,
                                   absl::Span<const RankTrace> ranks) {
  std::vector<NodeTimes> times(plan.graph.nodes.size());
  std::vector<int64_t> runs(times.size());
  for (const RankTrace& rank : ranks) {
    for (const Events& lane : rank.lanes) {
      for (const TraceEvent& event : lane) {
        times[event.id].seconds +=
            1e-9 * static_cast<double>(event.end - event.begin);
        ++runs[event.id];
      }
    }
  }
  const int64_t count = StepsIn(ranks) * ranks.size();
  for (size_t id = 0; id < times.size(); ++id) {
    times[id].runs = static_cast<double>(runs[id]) / count;
    times[id].seconds /= count;
  }
  return times;
}

}  // namespace shardgraph
