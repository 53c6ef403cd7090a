// MetricsJsonl: metrics as one JSON object a line: metrics.jsonl of a run
// directory.
//
// Training lines have the keys step, loss, learning_rate, grad_norm, tokens,
// tokens_per_second, step_seconds and mfu; evaluation lines step, eval_loss and
// eval_tokens. Numbers are written so that reading them gives the same bits;
// one that is not finite is null. Errors name the file.
#ifndef FSDP_TRAIN_METRICS_JSONL_H_
#define FSDP_TRAIN_METRICS_JSONL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/files/append_file.h"
#include "fsdp/train/metrics.h"

namespace shardgraph {

class MetricsJsonl final : public MetricsSink {
 public:
  // Appends to `path`. Of what is there, lines of steps beyond `steps_done`
  // (the step resumed from; 0 for a fresh run) are dropped, and so is a line
  // that was cut off.
  static absl::StatusOr<std::unique_ptr<MetricsJsonl>> Open(
      const std::string& path, int64_t steps_done);

  absl::Status Write(const StepMetrics& metrics) override;
  absl::Status Write(const EvaluationMetrics& metrics) override;

 private:
  explicit MetricsJsonl(std::unique_ptr<AppendFile> file);

  std::unique_ptr<AppendFile> file_;
  std::string line_;  // kept for its memory
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_METRICS_JSONL_H_
