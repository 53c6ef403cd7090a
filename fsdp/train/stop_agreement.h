// StopAgreement: lets all ranks stop after the same step when one is asked to.
//
// The ranks meet after a step, but only a few times a second: every rank
// proposes how many steps the next meeting is away, and the largest proposal
// holds for all. A rank that was asked to stop proposes the end.
#ifndef FSDP_TRAIN_STOP_AGREEMENT_H_
#define FSDP_TRAIN_STOP_AGREEMENT_H_

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"

namespace shardgraph {

class StopAgreement {
 public:
  using Max = std::function<absl::StatusOr<int64_t>(int64_t mine)>;

  // `requested`: whether this rank was asked to stop. `max`: collective, the
  // largest number over all ranks; null in a world of one.
  StopAgreement(std::function<bool()> requested, Max max);

  // Whether to stop now, the same on all ranks; all call it after each step.
  absl::StatusOr<bool> AfterStep(double step_seconds);

 private:
  const std::function<bool()> requested_;
  const Max max_;
  int64_t steps_left_ = 1;  // until the next meeting
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_STOP_AGREEMENT_H_
