#include "tools/trace/rank_trace.h"

#include <chrono>
#include <cstring>

namespace shardgraph {
namespace {

void AppendNumber(int64_t value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void AppendEvents(const std::vector<TraceEvent>& events, std::string* out) {
  AppendNumber(static_cast<int64_t>(events.size()), out);
  out->append(reinterpret_cast<const char*>(events.data()),
              events.size() * sizeof(TraceEvent));
}

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes) {}

  int64_t Number() {
    int64_t value = 0;
    Take(&value, sizeof(value));
    return value;
  }
  std::vector<TraceEvent> Events() {
    const int64_t count = Number();
    if (count < 0 ||
        count > static_cast<int64_t>(bytes_.size() / sizeof(TraceEvent))) {
      whole_ = false;
      return {};
    }
    std::vector<TraceEvent> events(count);
    Take(events.data(), count * sizeof(TraceEvent));
    return events;
  }
  // Everything was there, and nothing is left.
  bool Done() const { return whole_ && bytes_.empty(); }
  bool whole() const { return whole_; }

 private:
  void Take(void* out, size_t count) {
    whole_ = whole_ && count <= bytes_.size();
    if (!whole_ || count == 0) return;
    std::memcpy(out, bytes_.data(), count);
    bytes_.remove_prefix(count);
  }

  absl::string_view bytes_;
  bool whole_ = true;
};

}  // namespace

int64_t TraceCapacity(const StepPlan& plan, int64_t micro_batches,
                      int64_t steps) {
  // A lane runs each node of a phase at most once; the host thread adds fewer
  // events than one step has nodes, but for the smallest plans.
  constexpr int64_t kHost = 64;
  int64_t nodes = 0;
  for (const Phase& phase : plan.graph.phases) nodes += phase.nodes.size();
  return steps * (micro_batches * (nodes + 4) + kHost);
}

RankTrace TakeTrace(const TraceRecorder& recorder, int rank) {
  using std::chrono::duration_cast, std::chrono::nanoseconds;
  const int64_t shift = duration_cast<nanoseconds>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count() -
                        TraceRecorder::Now();
  RankTrace trace;
  trace.rank = rank;
  for (int lane = 0; lane < recorder.num_lanes(); ++lane)
    trace.lanes.push_back(recorder.lane(lane));
  trace.host = recorder.host();
  const auto move = [shift](std::vector<TraceEvent>& events) {
    for (TraceEvent& event : events) {
      event.begin += shift;
      event.end += shift;
    }
  };
  for (std::vector<TraceEvent>& lane : trace.lanes) move(lane);
  move(trace.host);
  return trace;
}

std::string PackTrace(const RankTrace& trace) {
  std::string bytes;
  AppendNumber(trace.rank, &bytes);
  AppendNumber(static_cast<int64_t>(trace.lanes.size()), &bytes);
  for (const std::vector<TraceEvent>& lane : trace.lanes)
    AppendEvents(lane, &bytes);
  AppendEvents(trace.host, &bytes);
  return bytes;
}

absl::StatusOr<RankTrace> UnpackTrace(absl::string_view bytes) {
  Reader reader(bytes);
  RankTrace trace;
  trace.rank = static_cast<int>(reader.Number());
  const int64_t lanes = reader.Number();
  for (int64_t lane = 0; lane < lanes && reader.whole(); ++lane)
    trace.lanes.push_back(reader.Events());
  trace.host = reader.Events();
  if (!reader.Done())
    return absl::DataLossError("these bytes are no trace of a rank");
  return trace;
}

}  // namespace shardgraph
