// The part of Verify that follows the bytes through one phase.
#ifndef GRAPH_VERIFY_PHASE_H_
#define GRAPH_VERIFY_PHASE_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "graph/step_plan.h"

namespace shardgraph {

// By gradient shard (buffer): the attribute "segments" of the optimizer ops
// that read it. What they cover must have been contributed to.
using ShardSegments = std::map<BufferId, const std::vector<int64_t>*>;

// Walks the total order of one phase, whose schedule is well formed (a
// permutation, edges forward, lanes below num_lanes), and checks
// - meaning: on the bytes of each buffer, conflicting accesses come in program
//   order and are ordered by lanes and edges; no op reads bytes that were not
//   written in this run, except that padding may pass through reductions; a
//   result that is not tied to an operand never replaces what was written;
// - memory: on the bytes of the arena, a buffer takes over bytes only when all
//   accesses of the one before have finished, and never loses bytes it reads.
// A run depends on those before it only through persistent buffers, which all
// lanes have left when it starts (they are joined at the end of a phase): what
// holds for one run holds for any sequence of runs.
absl::Status VerifyPhase(const StepPlan& plan, PhaseId phase,
                         const ShardSegments& shard_segments);

}  // namespace shardgraph

#endif  // GRAPH_VERIFY_PHASE_H_
