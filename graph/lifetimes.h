// When the phase-lifetime buffers are in use, under the schedules' partial
// order; for PlanMemory.
#ifndef GRAPH_LIFETIMES_H_
#define GRAPH_LIFETIMES_H_

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "graph/order.h"
#include "graph/step_plan.h"

namespace shardgraph {

// Use of a buffer in one phase. Positions count through all phases, one after
// the other.
struct Use {
  PhaseId phase = kNone;
  int32_t begin = 0;  // position of the first access
  int32_t end = 0;    // position of the last access
  // The last position of a node that does not surely start after the last
  // access: buffers first accessed later do not conflict.
  int32_t release = 0;
  LaneClock before = {};  // what has finished when any access starts
  LaneClock last = {};    // what must have finished for the bytes to be free
};

// Whether all of `a` has finished when `b` starts.
inline bool Precedes(const Use& a, const Use& b) {
  return a.last[0] <= b.before[0] && a.last[1] <= b.before[1] &&
         a.last[2] <= b.before[2] && a.last[3] <= b.before[3];
}

struct Lifetimes {
  std::vector<BufferId> buffers;  // phase-lifetime ones that some node touches
  std::vector<std::vector<Use>> uses;  // of each, at least one
  // The largest set of buffers found that must all be there at once: a bound
  // that no placement can beat.
  int64_t lower_bound = 0;
  // The same with each buffer rounded up to its alignment: reached means there
  // is nothing to gain.
  int64_t aligned_lower_bound = 0;
  PhaseId peak_phase = kNone;
  NodeId peak_node = kNone;
  std::vector<BufferId> live_at_peak;  // largest first
};

// Named outputs in phase-lifetime buffers stay until the end of their phase.
Lifetimes LifetimesOf(const Graph& graph,
                      const std::vector<PhaseSchedule>& schedules);

}  // namespace shardgraph

#endif  // GRAPH_LIFETIMES_H_
