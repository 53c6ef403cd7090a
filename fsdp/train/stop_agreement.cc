#include "fsdp/train/stop_agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr double kSecondsBetweenMeetings = 0.25;
// Steps may become longer than the last one was.
constexpr double kMostSteps = 64;
constexpr int64_t kStop = std::numeric_limits<int64_t>::max();

}  // namespace

StopAgreement::StopAgreement(std::function<bool()> requested, Max max)
    : requested_(std::move(requested)), max_(std::move(max)) {}

absl::StatusOr<bool> StopAgreement::AfterStep(double step_seconds) {
  if (max_ == nullptr) return requested_();
  if (--steps_left_ > 0) return false;
  const double steps =
      std::ceil(kSecondsBetweenMeetings / std::max(step_seconds, 1e-9));
  SG_ASSIGN_OR_RETURN(
      steps_left_,
      max_(requested_() ? kStop
                        : static_cast<int64_t>(std::min(steps, kMostSteps))));
  return steps_left_ == kStop;
}

}  // namespace shardgraph
