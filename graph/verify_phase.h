// The part of Verify that follows the bytes through one phase.
#ifndef GRAPH_VERIFY_PHASE_H_
#define GRAPH_VERIFY_PHASE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "graph/step_plan.h"
#include "graph/verify_padding.h"

namespace shardgraph {

// Walks the total order of one phase, whose schedule is well formed (a
// permutation, edges forward, lanes below num_lanes), and checks
// - meaning: on the bytes of each buffer, conflicting accesses come in program
//   order and are ordered by lanes and edges; no op reads bytes that were not
//   written in this run (what a strided result leaves out is not written),
//   except that padding may pass through reductions: those reads are added to
//   `padding`; a result that is not tied to an operand never replaces what was
//   written;
// - memory: on the bytes of the arena, a buffer takes over bytes only when all
//   accesses of the one before have finished, and never loses bytes it reads.
// A run depends on those before it only through persistent buffers, which all
// lanes have left when it starts (they are joined at the end of a phase): what
// holds for one run holds for any sequence of runs.
absl::Status VerifyPhase(const StepPlan& plan, PhaseId phase,
                         PaddingReads* padding);

}  // namespace shardgraph

#endif  // GRAPH_VERIFY_PHASE_H_
