// Where the gathers of a phase go, and what bounds the units in flight.
#ifndef GRAPH_PREFETCH_H_
#define GRAPH_PREFETCH_H_

#include <cstdint>
#include <vector>

#include "graph/dependencies.h"
#include "graph/graph.h"
#include "graph/passes.h"
#include "graph/step_plan.h"

namespace shardgraph {

// `to` waits for `from` though their bytes may not conflict. Program indices.
struct ExtraWait {
  int32_t from;
  int32_t to;
  EdgeKind kind;
};

struct PrefetchPlan {
  std::vector<int32_t> order;    // the total order, as program indices
  std::vector<ExtraWait> waits;  // sorted by `to`
};

// Gathers that follow each other, serve one unit in one direction and have no
// reader in between are one unshard. The compute lane takes turns: a turn is a
// run of readers of one unshard in forward, or in recompute and backward. The
// gathers of an unshard go to the start of the turn `prefetch` turns before
// that of their first reader, right behind the compute node before it, for
// which they wait (kPrefetch); but neither behind their place in the program
// nor before what they depend on.
//
// An unshard whose readers enclose those of a later one (the root's) lasts long
// and does not count as in flight. Of the others, the gathers of the k-th wait
// for the last reader of the one `max_units_in_flight` before (kThrottle).
// Likewise for gradients: the first node to write the gradient of a unit waits
// until all but max_units_in_flight - 1 of the reductions before it in the
// program have read theirs (kThrottle).
PrefetchPlan PlanPrefetch(const Graph& graph, const Phase& phase,
                          const std::vector<Dependencies>& dependencies,
                          const ScheduleOptions& options);

}  // namespace shardgraph

#endif  // GRAPH_PREFETCH_H_
