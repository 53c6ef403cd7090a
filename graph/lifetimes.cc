#include "graph/lifetimes.h"

#include <algorithm>
#include <limits>

#include "kernels/check.h"

namespace shardgraph {
namespace {

constexpr int32_t kForever = std::numeric_limits<int32_t>::max();

int64_t RoundUp(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

// Buffers of one phase. Entries are local ids: indices into `buffers`.
struct PhaseUses {
  std::vector<BufferId> buffers;
  std::vector<int32_t> num_nodes;   // by local id: how many touch it
  std::vector<int32_t> node_begin;  // by position, into `touched`
  std::vector<int32_t> touched;     // local ids, each once per node
  std::vector<bool> kept;           // until the end of the phase
};

PhaseUses UsesOf(const Graph& graph, const PhaseSchedule& schedule,
                 const std::vector<bool>& is_output,
                 std::vector<int32_t>* local_ids) {
  PhaseUses uses;
  std::vector<Access> accesses;
  std::vector<int32_t> last_node;
  for (size_t p = 0; p < schedule.order.size(); ++p) {
    uses.node_begin.push_back(static_cast<int32_t>(uses.touched.size()));
    accesses.clear();
    AppendAccesses(graph, graph.nodes[schedule.order[p]], &accesses);
    for (const Access& access : accesses) {
      const Buffer& buffer = graph.buffers[access.buffer];
      if (buffer.lifetime != Lifetime::kPhase || access.begin >= access.end)
        continue;
      int32_t& id = (*local_ids)[access.buffer];
      if (id == kNone) {
        id = static_cast<int32_t>(uses.buffers.size());
        uses.buffers.push_back(access.buffer);
        uses.num_nodes.push_back(0);
        uses.kept.push_back(is_output[access.buffer]);
        last_node.push_back(kNone);
      }
      if (last_node[id] == static_cast<int32_t>(p)) continue;
      last_node[id] = static_cast<int32_t>(p);
      ++uses.num_nodes[id];
      uses.touched.push_back(id);
    }
  }
  uses.node_begin.push_back(static_cast<int32_t>(uses.touched.size()));
  for (BufferId buffer : uses.buffers) (*local_ids)[buffer] = kNone;
  return uses;
}

// A state that an execution can be in: on each lane some nodes have finished,
// and the next may be running. All buffers that are live in it must be there at
// once.
class State {
 public:
  State(const Graph& graph, const PhaseUses& uses, const LaneClocks& clocks)
      : graph_(graph),
        uses_(uses),
        clocks_(clocks),
        left_(uses.num_nodes),
        started_(uses.buffers.size(), 0) {}

  // Finishes nodes until those of `finished` have; nothing may be running.
  void AdvanceTo(const LaneClock& finished) {
    for (int l = 0; l < kMaxLanes; ++l) {
      while (finished_[l] < finished[l]) {
        Start(l);
        Finish(l);
      }
    }
  }
  // Starts the next node of the lane, though others it waits for may run yet:
  // the caller knows better.
  void Start(int lane) {
    running_[lane] = true;
    ForEachBuffer(lane, [&](int32_t id) {
      if (started_[id]++ == 0) Count(id, 1);
    });
  }
  void Finish(int lane) {
    ForEachBuffer(lane, [&](int32_t id) {
      if (--left_[id] == 0 && !uses_.kept[id]) Count(id, -1);
    });
    running_[lane] = false;
    ++finished_[lane];
  }
  // Undo the last Start or Finish of the lane.
  void UndoStart(int lane) {
    ForEachBuffer(lane, [&](int32_t id) {
      if (--started_[id] == 0) Count(id, -1);
    });
    running_[lane] = false;
  }
  void UndoFinish(int lane) {
    --finished_[lane];
    running_[lane] = true;
    ForEachBuffer(lane, [&](int32_t id) {
      if (left_[id]++ == 0 && !uses_.kept[id]) Count(id, 1);
    });
  }

  bool running(int lane) const { return running_[lane]; }
  int32_t finished(int lane) const { return finished_[lane]; }
  // Whether the lane has a next node and all it waits for has finished.
  bool CanStart(int lane) const {
    const std::vector<int32_t>& nodes = clocks_.nodes(lane);
    if (running_[lane] ||
        finished_[lane] == static_cast<int32_t>(nodes.size())) {
      return false;
    }
    const LaneClock& clock = clocks_.clock(nodes[finished_[lane]]);
    for (int l = 0; l < kMaxLanes; ++l)
      if (clock[l] > finished_[l]) return false;
    return true;
  }

  int64_t bytes() const { return bytes_; }
  int64_t aligned_bytes() const { return aligned_bytes_; }
  std::vector<BufferId> Live() const {
    std::vector<BufferId> live;
    for (size_t id = 0; id < uses_.buffers.size(); ++id) {
      if (started_[id] > 0 && (left_[id] > 0 || uses_.kept[id]))
        live.push_back(uses_.buffers[id]);
    }
    return live;
  }

 private:
  // Buffers of the next node of the lane.
  template <typename F>
  void ForEachBuffer(int lane, F f) {
    const int32_t position = clocks_.nodes(lane)[finished_[lane]];
    for (int32_t i = uses_.node_begin[position];
         i < uses_.node_begin[position + 1]; ++i) {
      f(uses_.touched[i]);
    }
  }
  void Count(int32_t id, int sign) {
    const Buffer& buffer = graph_.buffers[uses_.buffers[id]];
    bytes_ += sign * buffer.bytes;
    aligned_bytes_ += sign * RoundUp(buffer.bytes, buffer.alignment);
  }

  const Graph& graph_;
  const PhaseUses& uses_;
  const LaneClocks& clocks_;
  std::vector<int32_t> left_;     // by local id: nodes that have not finished
  std::vector<int32_t> started_;  // nodes that have started
  LaneClock finished_ = {};
  std::array<bool, kMaxLanes> running_ = {};
  int64_t bytes_ = 0;
  int64_t aligned_bytes_ = 0;
};

// Looks for the state of a phase with the most live bytes: for each node, what
// is before it in the total order has finished, or only what must have; the
// node runs, and the other lanes go ahead to where they hold most.
class PeakSearch {
 public:
  PeakSearch(const Graph& graph, const PhaseUses& uses,
             const LaneClocks& clocks)
      : graph_(graph), uses_(uses), clocks_(clocks) {}

  void Run() {
    State in_order(graph_, uses_, clocks_);
    LaneClock finished = {};
    for (int32_t p = 0; p < clocks_.size(); ++p) {
      in_order.AdvanceTo(finished);
      Visit(p, &in_order);
      ++finished[clocks_.lane(p)];
    }
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      State lagging(graph_, uses_, clocks_);
      for (int32_t p : clocks_.nodes(lane)) {
        lagging.AdvanceTo(clocks_.clock(p));
        Visit(p, &lagging);
      }
    }
  }

  int64_t bytes() const { return bytes_; }
  int64_t aligned_bytes() const { return aligned_bytes_; }
  int32_t position() const { return position_; }
  const std::vector<BufferId>& live() const { return live_; }

 private:
  // How far other lanes go ahead, and how many such steps there are in all.
  static constexpr int kMaxSteps = 64;
  static constexpr int64_t kMaxTotalSteps = 1'000'000;

  void Visit(int32_t p, State* state) {
    const int own = clocks_.lane(p);
    state->Start(own);
    std::array<int32_t, kMaxLanes> begin;
    for (int l = 0; l < kMaxLanes; ++l) {
      begin[l] = state->finished(l);
      if (l != own) GoAhead(l, state);
    }
    aligned_bytes_ = std::max(aligned_bytes_, state->aligned_bytes());
    if (state->bytes() > bytes_) {
      bytes_ = state->bytes();
      position_ = p;
      live_ = state->Live();
    }
    for (int l = kMaxLanes; l-- > 0;) {
      if (l == own) continue;
      if (state->running(l)) state->UndoStart(l);
      Rewind(l, begin[l], state);
    }
    state->UndoStart(own);
  }

  // Leaves the lane in the state with the most live bytes, a node running or
  // none.
  void GoAhead(int lane, State* state) {
    const int32_t begin = state->finished(lane);
    int64_t best = state->bytes();
    int32_t best_running = kNone;  // finished nodes before it
    for (int step = 0; step < kMaxSteps && total_steps_ < kMaxTotalSteps &&
                       state->CanStart(lane);
         ++step, ++total_steps_) {
      state->Start(lane);
      if (state->bytes() > best) {
        best = state->bytes();
        best_running = state->finished(lane);
      }
      state->Finish(lane);
    }
    if (best_running == kNone) {
      Rewind(lane, begin, state);
    } else {
      while (state->finished(lane) > best_running + 1)
        Rewind(lane, state->finished(lane) - 1, state);
      state->UndoFinish(lane);
    }
  }

  static void Rewind(int lane, int32_t to, State* state) {
    while (state->finished(lane) > to) {
      state->UndoFinish(lane);
      state->UndoStart(lane);
    }
  }

  const Graph& graph_;
  const PhaseUses& uses_;
  const LaneClocks& clocks_;
  int64_t total_steps_ = 0;
  int64_t bytes_ = 0;
  int64_t aligned_bytes_ = 0;
  int32_t position_ = kNone;
  std::vector<BufferId> live_;
};

// The last position of a node that does not start after `last`.
int32_t ReleaseOf(const LaneClocks& clocks, const LaneClock& last) {
  int32_t release = 0;
  for (int l = 0; l < kMaxLanes; ++l) {
    const std::vector<int32_t>& nodes = clocks.nodes(l);
    const auto after =
        std::partition_point(nodes.begin(), nodes.end(), [&](int32_t p) {
          for (int k = 0; k < kMaxLanes; ++k) {
            if (clocks.clock(p)[k] < last[k]) return true;
          }
          return false;
        });
    if (after != nodes.begin()) release = std::max(release, *(after - 1));
  }
  return release;
}

}  // namespace

Lifetimes LifetimesOf(const Graph& graph,
                      const std::vector<PhaseSchedule>& schedules) {
  Lifetimes result;
  std::vector<bool> is_output(graph.buffers.size(), false);
  for (const auto& [name, value] : graph.outputs)
    is_output[graph.values[value].buffer] = true;

  std::vector<int32_t> entry(graph.buffers.size(), kNone);
  std::vector<int32_t> local_ids(graph.buffers.size(), kNone);
  int32_t base = 0;
  for (const PhaseSchedule& schedule : schedules) {
    const int32_t size = static_cast<int32_t>(schedule.order.size());
    const LaneClocks clocks = ClocksOf(graph, schedule);
    const PhaseUses uses = UsesOf(graph, schedule, is_output, &local_ids);

    std::vector<Use> by_id(uses.buffers.size());
    for (int32_t p = 0; p < size; ++p) {
      for (int32_t i = uses.node_begin[p]; i < uses.node_begin[p + 1]; ++i) {
        Use& use = by_id[uses.touched[i]];
        if (use.phase == kNone) {
          use.phase = schedule.phase;
          use.begin = p;
          use.before = clocks.clock(p);
        }
        use.end = p;
        for (int l = 0; l < kMaxLanes; ++l)
          use.before[l] = std::min(use.before[l], clocks.clock(p)[l]);
        use.last[clocks.lane(p)] = clocks.index(p) + 1;
      }
    }
    for (size_t id = 0; id < by_id.size(); ++id) {
      Use& use = by_id[id];
      if (uses.kept[id]) {
        use.last.fill(kForever);
        use.end = size - 1;
      }
      use.release = std::max(use.end, ReleaseOf(clocks, use.last));
      use.begin += base;
      use.end += base;
      use.release += base;
      int32_t& at = entry[uses.buffers[id]];
      if (at == kNone) {
        at = static_cast<int32_t>(result.buffers.size());
        result.buffers.push_back(uses.buffers[id]);
        result.uses.emplace_back();
      }
      result.uses[at].push_back(use);
    }
    base += size;

    PeakSearch peak(graph, uses, clocks);
    peak.Run();
    result.aligned_lower_bound =
        std::max(result.aligned_lower_bound, peak.aligned_bytes());
    if (peak.bytes() <= result.lower_bound) continue;
    result.lower_bound = peak.bytes();
    result.peak_phase = schedule.phase;
    result.peak_node = schedule.order[peak.position()];
    result.live_at_peak = peak.live();
  }
  std::sort(result.live_at_peak.begin(), result.live_at_peak.end(),
            [&](BufferId a, BufferId b) {
              const int64_t size_a = graph.buffers[a].bytes;
              const int64_t size_b = graph.buffers[b].bytes;
              return size_a != size_b ? size_a > size_b : a < b;
            });
  return result;
}

}  // namespace shardgraph
