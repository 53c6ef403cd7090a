// Metrics: what a run reports, and where it goes: metrics.jsonl, TensorBoard
// events, a progress line.
#ifndef FSDP_TRAIN_METRICS_H_
#define FSDP_TRAIN_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardgraph {

struct StepMetrics {
  int64_t step = 0;  // 1-based: steps done
  double loss = 0;   // mean nats per unmasked token of the global batch
  double learning_rate = 0;
  double gradient_norm = 0;  // before clipping
  int64_t tokens = 0;        // unmasked targets of the step
  double step_seconds = 0;
  double tokens_per_second = 0;
  double mfu =
      0;  // model FLOPs over the target's peak; 0 when the peak is unknown
  double loss_scale = 1;  // of the next step
  bool skipped = false;   // it has changed no weights
};

struct EvaluationMetrics {
  int64_t step = 0;
  double loss = 0;  // mean nats per held-out token
  int64_t tokens = 0;
};

// One destination. Called by one thread, on rank 0 only. Steps after the first
// allocate nothing.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual absl::Status Write(const StepMetrics& metrics) = 0;
  virtual absl::Status Write(const EvaluationMetrics& metrics) = 0;
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_METRICS_H_
