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

// Walks a growing set of nodes that have finished, and says what is live.
class Sweep {
 public:
  Sweep(const Graph& graph, const PhaseUses& uses)
      : graph_(graph),
        uses_(uses),
        left_(uses.num_nodes),
        started_(uses.buffers.size(), false) {}

  void Start(int32_t position) {
    ForEach(position, [&](int32_t id) {
      if (started_[id]) return;
      started_[id] = true;
      Count(id, 1);
    });
  }
  // Started before or not.
  void Finish(int32_t position) {
    Start(position);
    ForEach(position, [&](int32_t id) {
      if (--left_[id] == 0 && !uses_.kept[id]) Count(id, -1);
    });
  }

  int64_t bytes() const { return bytes_; }
  int64_t aligned_bytes() const { return aligned_bytes_; }
  std::vector<BufferId> Live() const {
    std::vector<BufferId> live;
    for (size_t id = 0; id < uses_.buffers.size(); ++id) {
      if (started_[id] && (left_[id] > 0 || uses_.kept[id]))
        live.push_back(uses_.buffers[id]);
    }
    return live;
  }

 private:
  template <typename F>
  void ForEach(int32_t position, F f) {
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
  std::vector<int32_t> left_;
  std::vector<bool> started_;
  int64_t bytes_ = 0;
  int64_t aligned_bytes_ = 0;
};

// Calls visit(position, sweep) for states that an execution can be in: all of
// the total order before a node has finished and the node runs.
template <typename F>
void SweepTotalOrder(const Graph& graph, const PhaseUses& uses, int32_t size,
                     F visit) {
  Sweep sweep(graph, uses);
  for (int32_t p = 0; p < size; ++p) {
    sweep.Start(p);
    visit(p, sweep);
    sweep.Finish(p);
  }
}

// The same for the nodes of one lane, the other lanes as far behind as their
// edges allow.
template <typename F>
void SweepLane(const Graph& graph, const PhaseUses& uses,
               const LaneClocks& clocks, int lane, F visit) {
  Sweep sweep(graph, uses);
  LaneClock finished = {};
  for (int32_t p : clocks.nodes(lane)) {
    for (int l = 0; l < kMaxLanes; ++l) {
      for (; finished[l] < clocks.clock(p)[l]; ++finished[l])
        sweep.Finish(clocks.nodes(l)[finished[l]]);
    }
    sweep.Start(p);
    visit(p, sweep);
  }
}

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

    // -1: the total order; else a lane.
    int best_sweep = kNone;
    int32_t best_position = kNone;
    int sweep_id = -1;
    const auto visit = [&](int32_t p, const Sweep& sweep) {
      result.aligned_lower_bound =
          std::max(result.aligned_lower_bound, sweep.aligned_bytes());
      if (sweep.bytes() <= result.lower_bound) return;
      result.lower_bound = sweep.bytes();
      best_sweep = sweep_id;
      best_position = p;
    };
    SweepTotalOrder(graph, uses, size, visit);
    for (sweep_id = 0; sweep_id < kMaxLanes; ++sweep_id)
      SweepLane(graph, uses, clocks, sweep_id, visit);
    if (best_position == kNone) continue;

    result.peak_phase = schedule.phase;
    result.peak_node = schedule.order[best_position];
    const auto keep = [&](int32_t p, const Sweep& sweep) {
      if (p == best_position) result.live_at_peak = sweep.Live();
    };
    if (best_sweep < 0) {
      SweepTotalOrder(graph, uses, size, keep);
    } else {
      SweepLane(graph, uses, clocks, best_sweep, keep);
    }
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
