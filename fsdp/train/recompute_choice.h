// ChooseRecompute: what shard.recompute=AUTO stands for: the cheapest choice of
// what each unit recomputes that fits a budget.
//
// Memory is that of the real planner, time that of a cost model on real plans.
// A unit recomputes nothing, everything, or some of: norms; pointwise ops and
// dropout; attention and rotary positions; feed-forward modules. Units that
// are alike (the class of their module, the shapes of their parameters) are
// looked at together, the last one apart: what it makes again is there at the
// peak anyway. Three stages:
//
// 1. Each option is planned for all units of a kind: bytes saved and seconds
//    added of one.
// 2. A knapsack over units gives the front of choices of which none is both
//    smaller and faster, by these sums. Along it the real planner bisects for
//    the first that fits; the front around it is planned too.
// 3. From the best one, single units take cheaper options as long as that fits
//    and is faster.
//
// Earlier units recompute more: what they keep lives longest. The result is a
// pure function of its arguments.
#ifndef FSDP_TRAIN_RECOMPUTE_CHOICE_H_
#define FSDP_TRAIN_RECOMPUTE_CHOICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/train/training_plan.h"
#include "proto/shard.pb.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Of a training step.
using StepSeconds =
    std::function<absl::StatusOr<double>(const TrainingPlan& plan)>;

// Bytes that a rank's arena may take: the config's or the target's; 0: not
// known.
int64_t RecomputeBudget(const PlanRequest& request);

// `request.config` says AUTO. InvalidArgument: no budget is known; nothing fits
// (the budget, what would be enough, and the remedy). `times` says where the
// seconds come from.
absl::StatusOr<RecomputeChoice> ChooseRecompute(const PlanRequest& request,
                                                const StepSeconds& seconds,
                                                const std::string& times);
// That one and the next best that were looked at and fit, `most` at most; what
// differs only in which of like units it is for counts once.
absl::StatusOr<std::vector<RecomputeChoice>> RankRecompute(
    const PlanRequest& request, const StepSeconds& seconds,
    const std::string& times, size_t most);

// RecomputeChoice::key of a request; errors are those of planning.
absl::StatusOr<std::string> RecomputeKey(const PlanRequest& request);

// What the choice was made for, in place of AUTO.
void ApplyRecompute(const RecomputeChoice& choice, TrainConfig* config);

// Lines of text: what and why.
std::string DescribeRecompute(const RecomputeChoice& choice);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_RECOMPUTE_CHOICE_H_
