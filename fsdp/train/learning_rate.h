// The learning rate of a step.
#ifndef FSDP_TRAIN_LEARNING_RATE_H_
#define FSDP_TRAIN_LEARNING_RATE_H_

#include <cstdint>

#include "proto/train.pb.h"

namespace shardgraph {

// Of the 0-based step `step`: peak x (step + 1) / warmup_steps during warm-up,
// then from the peak at warmup_steps down to peak x final_fraction at
// decay_steps (COSINE: half a cosine; LINEAR: a line; WARMUP_STABLE_DECAY: the
// peak until stable_until, then a line; CONSTANT: the peak), constant behind
// it. INVERSE_SQUARE_ROOT: peak x sqrt(max(1, warmup_steps) / (step + 1)).
double LearningRate(const ScheduleSpec& schedule, double peak, int64_t step);

// What the peak is multiplied by with `world_size` ranks.
double WorldFactor(OptimizerSpec::RateScaling scaling, int world_size);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_LEARNING_RATE_H_
