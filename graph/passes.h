// The passes between Differentiate and the executor that know no sharding. Each
// is a free function; each header-level contract stands here, each
// implementation in a file of its own.
#ifndef GRAPH_PASSES_H_
#define GRAPH_PASSES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/graph.h"
#include "graph/step_plan.h"
#include "proto/target.pb.h"

namespace shardgraph {

// Rematerialize (remat.cc): for every backward node of the phase that reads a
// buffer marked `rematerialize` which forward wrote, re-runs the producers
// (gathers included) into fresh buffers just before the first backward node
// that needs anything of that unit, once per unit, and redirects all backward
// readers. Producers' operands that are marked too are rerun as well. Clones
// get Direction::kRecompute and keep scope, unit and attributes (dropout is
// keyed, so it repeats). A buffer that `recipes` has is made again by the node
// given there in place of its producer, of which it must be the only result;
// the operands are values of the phase. FailedPrecondition when a node that
// would have to run again updates in place, or when what it reads has been
// overwritten.
struct Recipe {
  std::string op;
  std::vector<ValueId> operands;
  Attributes attributes;
};
using Recipes = std::map<BufferId, Recipe>;
absl::Status Rematerialize(Graph& graph, PhaseId phase,
                           const Recipes& recipes = {});

// Lower (lower.cc): drops nodes whose results nobody reads and that write
// nothing persistent, fuses (graph/fusion.h) by all patterns that the target
// has but those named in `unfused` (kAllFusions: none), gives each node its
// workspace, within the target's budget for the op's family
// (kernels/op_table.h), and aligns buffers as the target says. `workspace`
// returns the bytes a node needs on the target (from the kernel table of its
// backend); null: none.
using WorkspaceFunction = std::function<absl::StatusOr<int64_t>(
    const Graph& graph, const Node& node)>;
inline constexpr absl::string_view kAllFusions = "all";
absl::Status Lower(Graph& graph, const TargetSpec& target,
                   const WorkspaceFunction& workspace,
                   absl::Span<const std::string> unfused = {});

struct ScheduleOptions {
  // Units whose gather is issued ahead of the unit that computes (0: none is
  // prefetched).
  int prefetch = 1;
  // Gathered units alive at once, the computing one included; at least prefetch
  // + 1.
  int max_units_in_flight = 2;
};

// Schedule (schedule.cc): total order, lanes, event edges of every phase. Moves
// only nodes of the gather lane, to prefetch them. Emits the transitive
// reduction (through lanes and edges) of: data dependencies (RAW, WAR, WAW on
// byte ranges in program order), throttle edges (gather k waits for the last
// reader of the gathered buffer `max_units_in_flight` gathers before it; the
// first writer of a unit's gradient for the reduction so many before it) and
// prefetch edges. All collectives of a phase get one total order.
// Other lanes keep program order: what consumes a reduction (accumulate) stalls
// the compute lane unless whoever emits it puts it on the reduce lane too
// (Node::lane) or later in the program.
absl::StatusOr<std::vector<PhaseSchedule>> Schedule(
    const Graph& graph, const TargetSpec& target,
    const ScheduleOptions& options);

// PlanMemory (memory_plan.cc): offsets of all buffers in one arena; persistent
// part first, then the transient part, the maximum over phases. Adds no edges:
// two buffers share bytes only where the schedules already order the last
// access of one before the first access of the other.
absl::StatusOr<MemoryPlan> PlanMemory(
    const Graph& graph, const std::vector<PhaseSchedule>& schedules);

// Verify (verify.cc): proves a finished plan, sharing no code with the passes
// above. In every phase, and over two runs in a row, each pair of conflicting
// accesses of arena bytes is ordered by lanes and edges as program order
// demands; nothing reads bytes that were not written (or overwritten) before;
// results tied to operands share their bytes; collectives have one order, a
// known group and the right counts; gradients are summed over every rank once,
// norms over their shards; buffers lie inside the arena and are aligned; each
// accumulation is there. The error names nodes, buffers and ranges.
absl::Status Verify(const StepPlan& plan);

}  // namespace shardgraph

#endif  // GRAPH_PASSES_H_
