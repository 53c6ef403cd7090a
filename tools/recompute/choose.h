// What shard.recompute=AUTO stands for in a run: chosen by what this machine
// takes for the ops of the model.
#ifndef TOOLS_RECOMPUTE_CHOOSE_H_
#define TOOLS_RECOMPUTE_CHOOSE_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/train/recompute_choice.h"
#include "fsdp/train/training_plan.h"
#include "tools/runtime/runtime.h"

namespace shardgraph {

// Collective; the same choice on every rank. `request.config` says AUTO.
//
// Where recomputing nothing fits, that is it. On GPUs the target's figures
// count. Otherwise some steps are run with everything recomputed and timed node
// by node, a choice is made by those times and timed itself, until a choice
// comes up again (at most kMaxTrials times). Then steps of all that came up, of
// the next best by those times and of what the target's figures would choose
// are run in turn, as far as this host has memory for them at once: the fastest
// is the choice, and what its steps took is the time that it says. Rank 0
// chooses. Errors are those of ChooseRecompute.
inline constexpr int kMaxTrials = 3;
absl::StatusOr<RecomputeChoice> ChooseByTrials(const PlanRequest& request,
                                               Runtime& runtime);

// The same through a file, which holds what an earlier start of the run has
// chosen: that counts as long as what it was chosen for is the same, so that a
// run goes on as it began. Rank 0 reads and writes it.
absl::StatusOr<RecomputeChoice> ChooseOnce(const PlanRequest& request,
                                           const std::string& file,
                                           Runtime& runtime);

}  // namespace shardgraph

#endif  // TOOLS_RECOMPUTE_CHOOSE_H_
