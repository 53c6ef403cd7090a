#include "fsdp/train/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace shardgraph {

double LearningRate(const ScheduleSpec& schedule, double peak, int64_t step) {
  const int64_t warmup = schedule.warmup_steps();
  if (step < warmup)
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const int64_t decay = std::max<int64_t>(1, schedule.decay_steps() - warmup);
  const double progress = std::min(
      1.0, static_cast<double>(step - warmup) / static_cast<double>(decay));
  const double low = schedule.final_fraction();
  switch (schedule.kind()) {
    case ScheduleSpec::COSINE:
      return peak * (low + (1 - low) * 0.5 * (1 + std::cos(M_PI * progress)));
    case ScheduleSpec::LINEAR:
      return peak * (low + (1 - low) * (1 - progress));
    case ScheduleSpec::WARMUP_STABLE_DECAY: {
      const int64_t stable = schedule.stable_until();
      const double fall =
          std::clamp(static_cast<double>(step - stable) /
                         std::max<int64_t>(1, schedule.decay_steps() - stable),
                     0.0, 1.0);
      return peak * (low + (1 - low) * (1 - fall));
    }
    case ScheduleSpec::INVERSE_SQUARE_ROOT:
      return peak * std::sqrt(std::max(1.0, static_cast<double>(warmup)) /
                              static_cast<double>(step + 1));
    default:
      return peak;
  }
}

double WorldFactor(OptimizerSpec::RateScaling scaling, int world_size) {
  switch (scaling) {
    case OptimizerSpec::LINEAR:
      return world_size;
    case OptimizerSpec::SQUARE_ROOT:
      return std::sqrt(static_cast<double>(world_size));
    default:
      return 1;
  }
}

}  // namespace shardgraph
