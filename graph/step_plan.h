// StepPlan: the verified, printable, hashable result of planning: what the
// executor runs and what `plan` prints. The same on every rank; immutable once
// made.
#ifndef GRAPH_STEP_PLAN_H_
#define GRAPH_STEP_PLAN_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace shardgraph {

enum class EdgeKind : uint8_t {
  kData,      // byte ranges conflict
  kThrottle,  // limit of units in flight: the bytes of an earlier one are free
  kPrefetch,  // a gather is not issued before the node it is to overlap with
};

// `to` starts only after `from` has finished; the two are on different lanes.
struct Edge {
  NodeId from = kNone;
  NodeId to = kNone;
  EdgeKind kind = EdgeKind::kData;

  friend bool operator==(const Edge&, const Edge&) = default;
};

// Nodes of one lane run in total order, one after another; lanes run beside
// each other but for edges. All lanes are joined at the end of a phase: every
// node of a run happens before every node of the next run.
struct PhaseSchedule {
  PhaseId phase = kNone;
  std::vector<NodeId> order;  // the total order: a permutation of Phase::nodes
  std::vector<int32_t>
      lanes;  // lane index of order[i]; dense from 0; compute is 0
  std::vector<Edge> edges;  // sorted by (position of to, position of from)
};

struct MemoryPlan {
  // By BufferId: bytes from the start of the arena; kNone for a phase-lifetime
  // buffer that no node touches.
  std::vector<int64_t> offsets;
  int64_t arena_bytes = 0;       // persistent_bytes + the transient part
  int64_t persistent_bytes = 0;  // run and step lifetime
  int64_t transient_bytes = 0;
  // Over the total orders: maximum of the live transient bytes, a buffer living
  // from its first access until its last access happens-before the buffer's
  // successor could start; what no packing can beat.
  int64_t transient_lower_bound = 0;
  std::array<int64_t, kNumMemoryKinds> bytes_by_kind =
      {};  // persistent, plus what is live at the transient peak
  PhaseId peak_phase = kNone;
  NodeId peak_node = kNone;            // where the peak is reached
  std::vector<BufferId> live_at_peak;  // transient ones, largest first
};

// Bytes a rank receives plus sends are counted as the collective's standard
// volume: all-gather and reduce-scatter of S full bytes over n ranks move S (n
// - 1) / n per rank, all-reduce twice that.
struct CommunicationVolume {
  int64_t all_gather_bytes = 0;
  int64_t reduce_scatter_bytes = 0;
  int64_t all_reduce_bytes = 0;
  int64_t all_to_all_bytes = 0;  // like a reduce-scatter
};

// The same for one node; 0 for one that is no collective of a known group.
int64_t CollectiveBytes(const Graph& graph, const Node& node);

struct StepPlan {
  Graph graph;
  std::vector<PhaseSchedule> schedules;  // one per phase, same index
  MemoryPlan memory;
  std::string target;  // name of the TargetSpec
  int32_t num_lanes = 1;
  std::string hash;  // 16 hex digits over PrintPlan
};

// Volume of one run of the phase, per rank.
CommunicationVolume VolumeOf(const StepPlan& plan, PhaseId phase);
// FLOPs of GEMMs and attention in one run of the phase, by direction (index:
// Direction).
std::array<double, 4> MatmulFlopsOf(const StepPlan& plan, PhaseId phase);

// Stable text: graph, orders, edges, offsets. The hash is taken over it.
std::string PrintPlan(const StepPlan& plan);
std::string HashPlan(const StepPlan& plan);

}  // namespace shardgraph

#endif  // GRAPH_STEP_PLAN_H_
