#include "tools/trace/chrome_trace.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "kernels/op.h"
#include "tools/plan/timeline.h"

namespace shardgraph {
namespace {

std::string Quoted(absl::string_view text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

class Writer {
 public:
  Writer(const StepPlan& plan, int64_t origin) : plan_(plan), origin_(origin) {
    const Graph& graph = plan.graph;
    for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id)
      arguments_.push_back(Arguments(id));
  }

  void Rank(const RankTrace& trace) {
    const int lanes = static_cast<int>(trace.lanes.size());
    Name("process_name", trace.rank, 0, absl::StrCat("rank ", trace.rank));
    Sort("process_sort_index", trace.rank, 0, trace.rank);
    for (int lane = 0; lane <= lanes; ++lane) {
      const bool host = lane == lanes;
      Name("thread_name", trace.rank, lane,
           host ? "host" : LaneName(lane, plan_.num_lanes));
      Sort("thread_sort_index", trace.rank, lane, host ? -1 : lane);
    }
    for (int lane = 0; lane < lanes; ++lane) {
      for (const TraceEvent& event : trace.lanes[lane]) {
        const Node& node = plan_.graph.nodes[event.id];
        Complete(event, trace.rank, lane, node.op->name,
                 plan_.graph.phases[node.phase].name,
                 absl::StrCat(arguments_[event.id], ",\"step\":", event.step));
      }
    }
    for (const TraceEvent& event : trace.host) {
      const std::string name =
          event.id == TraceEvent::kStep ? absl::StrCat("step ", event.step)
          : event.id == TraceEvent::kSynchronize
              ? "wait for the lanes"
              : absl::StrCat("enqueue ", plan_.graph.phases[event.id].name);
      Complete(event, trace.rank, lanes, name, "host",
               absl::StrCat("\"step\":", event.step));
    }
    Arrows(trace);
  }

  std::string Finish() {
    return absl::StrCat("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[", text_,
                        "\n]}\n");
  }

 private:
  // What a node's events have in common.
  std::string Arguments(NodeId id) const {
    const Graph& graph = plan_.graph;
    const Node& node = graph.nodes[id];
    const OpCost cost =
        CostOf(*node.op, node.attributes, graph.OperandTypes(node),
               graph.ResultTypes(node));
    return absl::StrCat(
        "\"node\":", id, ",\"scope\":", Quoted(graph.scope_of(node)),
        ",\"unit\":",
        Quoted(node.unit == kNone ? std::string()
                                  : graph.units[node.unit].name),
        ",\"phase\":", Quoted(graph.phases[node.phase].name),
        ",\"direction\":", Quoted(DirectionName(node.direction)),
        ",\"bytes\":", cost.bytes, ",\"flops\":",
        absl::StrFormat("%.0f", cost.matmul_flops + cost.pointwise_flops));
  }

  std::string Time(int64_t ns) const {
    return absl::StrFormat("%d.%03d", (ns - origin_) / 1000,
                           (ns - origin_) % 1000);
  }

  void Begin() { absl::StrAppend(&text_, text_.empty() ? "\n" : ",\n"); }

  void Name(absl::string_view what, int rank, int thread,
            const std::string& name) {
    Begin();
    absl::StrAppend(&text_, "{\"ph\":\"M\",\"name\":\"", what,
                    "\",\"pid\":", rank, ",\"tid\":", thread,
                    ",\"args\":{\"name\":", Quoted(name), "}}");
  }

  void Sort(absl::string_view what, int rank, int thread, int index) {
    Begin();
    absl::StrAppend(&text_, "{\"ph\":\"M\",\"name\":\"", what,
                    "\",\"pid\":", rank, ",\"tid\":", thread,
                    ",\"args\":{\"sort_index\":", index, "}}");
  }

  void Complete(const TraceEvent& event, int rank, int thread,
                absl::string_view name, absl::string_view category,
                absl::string_view arguments) {
    Begin();
    absl::StrAppend(&text_, "{\"ph\":\"X\",\"name\":", Quoted(name),
                    ",\"cat\":", Quoted(category), ",\"pid\":", rank,
                    ",\"tid\":", thread, ",\"ts\":", Time(event.begin),
                    ",\"dur\":", Time(origin_ + event.end - event.begin),
                    ",\"args\":{", arguments, "}}");
  }

  void Arrow(absl::string_view end, int rank, int thread, int64_t time) {
    Begin();
    absl::StrAppend(&text_, "{\"ph\":", end,
                    ",\"name\":\"edge\",\"cat\":\"edge\",\"id\":", arrows_,
                    ",\"pid\":", rank, ",\"tid\":", thread,
                    ",\"ts\":", Time(time), "}");
  }

  // The k-th time a node ran belongs to the k-th time of those it waits for.
  void Arrows(const RankTrace& trace) {
    std::map<NodeId, std::vector<std::pair<int, const TraceEvent*>>> runs;
    for (size_t lane = 0; lane < trace.lanes.size(); ++lane) {
      for (const TraceEvent& event : trace.lanes[lane])
        runs[event.id].emplace_back(static_cast<int>(lane), &event);
    }
    for (const PhaseSchedule& schedule : plan_.schedules) {
      for (const Edge& edge : schedule.edges) {
        const auto &from = runs[edge.from], &to = runs[edge.to];
        if (from.size() != to.size()) continue;  // a ring was full
        for (size_t i = 0; i < from.size(); ++i) {
          // An arrow starts within an event, not at its end.
          Arrow("\"s\"", trace.rank, from[i].first,
                std::max(from[i].second->begin, from[i].second->end - 1));
          Arrow("\"f\",\"bp\":\"e\"", trace.rank, to[i].first,
                to[i].second->begin);
          ++arrows_;
        }
      }
    }
  }

  const StepPlan& plan_;
  const int64_t origin_;
  std::vector<std::string> arguments_;  // by NodeId
  std::string text_;
  int64_t arrows_ = 0;
};

int64_t FirstTime(absl::Span<const RankTrace> ranks) {
  int64_t first = std::numeric_limits<int64_t>::max();
  const auto look = [&first](const std::vector<TraceEvent>& events) {
    for (const TraceEvent& event : events) first = std::min(first, event.begin);
  };
  for (const RankTrace& rank : ranks) {
    for (const std::vector<TraceEvent>& lane : rank.lanes) look(lane);
    look(rank.host);
  }
  return first;
}

}  // namespace

std::string ChromeTrace(const StepPlan& plan,
                        absl::Span<const RankTrace> ranks) {
  Writer writer(plan, FirstTime(ranks));
  for (const RankTrace& rank : ranks) writer.Rank(rank);
  return writer.Finish();
}

}  // namespace shardgraph
