// StepState: what changes from step to step and must not be frozen into a
// captured step, in device memory.
//
// One instance per rank lives in the arena as the run-lifetime buffer
// "step_state". The graph reads and writes its fields as zero- or
// one-dimensional views (graph/builder.h: StateField); the host writes the
// fields marked (host) between phases through Executor::Write and never reads
// the struct in a steady step.
#ifndef KERNELS_STEP_STATE_H_
#define KERNELS_STEP_STATE_H_

#include <cstddef>
#include <cstdint>

namespace shardgraph {

struct StepState {
  static constexpr int kMaxGroups = 8;  // optimizer groups

  int64_t run_step = 0;  // (host) 0-based step of the run; keys dropout;
                         // advances on every step
  int64_t micro = 0;     // (host) index of the micro-batch within the step; 0
                         // discards old accumulations
  int64_t position =
      0;  // (host) tokens already in the KV cache (prefill and decode)
  double nominal_tokens = 1;  // (host) tokens of a full global batch; the
                              // backward seed is loss_scale / nominal
  float learning_rate[kMaxGroups] =
      {};  // (host) of this step, per optimizer group
  int64_t optimizer_step =
      0;  // updates applied so far; does not advance on a skipped step
  double beta1_power[kMaxGroups] = {
      1, 1, 1, 1, 1, 1, 1, 1};  // beta^optimizer_step, per optimizer group
  double beta2_power[kMaxGroups] = {1, 1, 1, 1, 1, 1, 1, 1};
  double loss_sum =
      0;  // sum of token losses, nats; over micro-batches, then over ranks
  double token_count = 0;  // unmasked tokens; over micro-batches, then over
                           // ranks (follows loss_sum directly)
  double gradient_norm =
      0;  // global L2 norm of the averaged gradient, before clipping
  double gradient_scale = 1;  // the update multiplies gradients by this:
                              // unscale x nominal / actual x clip
  float loss_scale = 1;
  int32_t growth_counter = 0;
  int32_t found_inf = 0;  // of this step, the same on every rank
  int32_t stop =
      0;  // sticky: set on the first non-finite step under the policy `stop`
};

static_assert(offsetof(StepState, token_count) ==
                  offsetof(StepState, loss_sum) + 8,
              "reduced as one pair");

}  // namespace shardgraph

#endif  // KERNELS_STEP_STATE_H_
