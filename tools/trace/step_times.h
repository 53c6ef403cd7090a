// StepTimes: where the time of recorded steps goes: by op family and lane,
// with what lanes wait for and what is left.
#ifndef TOOLS_TRACE_STEP_TIMES_H_
#define TOOLS_TRACE_STEP_TIMES_H_

#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "graph/step_plan.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {

// Seconds a step, the mean over steps and ranks.
struct LaneTimes {
  // Of kernels, by family (kernels/op_table.h: FamilyOf). A collective counts
  // from when its last rank has come.
  std::map<std::string, double> families;
  double peers = 0;  // within collectives: until the last rank has come
  double waits = 0;  // for other lanes
  // Ready, but its thread was not running: others had the cores, or it was
  // being woken.
  double queued = 0;
  double engine = 0;  // none of the above: the executor and the host thread
};

struct StepTimes {
  double seconds = 0;
  std::vector<LaneTimes> lanes;  // the parts of each add up to `seconds`
};

// `ranks` are all ranks of the world, with the same steps. A lane waits between
// the end of its last node and the last end of a node that the next one has to
// follow; at the end of a run, until the last lane is done.
StepTimes StepTimesOf(const StepPlan& plan, absl::Span<const RankTrace> ranks);

// Of one node of the plan, over all ranks and recorded steps.
struct NodeTimes {
  double seconds = 0;  // a step, the mean
  double runs = 0;     // a step
};
// By NodeId.
std::vector<NodeTimes> NodeTimesOf(const StepPlan& plan,
                                   absl::Span<const RankTrace> ranks);

}  // namespace shardgraph

#endif  // TOOLS_TRACE_STEP_TIMES_H_
