// ProgressLine: metrics for the person who watches: step, loss, tokens per
// second, time left.
#ifndef FSDP_TRAIN_PROGRESS_H_
#define FSDP_TRAIN_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "fsdp/train/metrics.h"

namespace shardgraph {

struct ProgressOptions {
  std::FILE* file = nullptr;  // outlives the sink
  int64_t steps = 0;          // of the whole run
  int64_t log_every = 1;      // steps; the last one is always shown
  bool terminal = false;      // rewrite one line instead of adding lines
};

// Whether `file` is a terminal that can rewrite a line.
bool IsTerminal(std::FILE* file);

// "1 h 05 min", "2 min 03 s", "4.2 s".
std::string PrintDuration(double seconds);
// "950", "12.3 k", "4.57 M".
std::string PrintRate(double per_second);

// Rates and the time left are averages over the last steps. Writing never
// fails: a closed console does not end a run.
class ProgressLine final : public MetricsSink {
 public:
  explicit ProgressLine(const ProgressOptions& options);
  ~ProgressLine() override;

  absl::Status Write(const StepMetrics& metrics) override;
  absl::Status Write(const EvaluationMetrics& metrics) override;

 private:
  void Print(bool keep);  // line_

  const ProgressOptions options_;
  int64_t measured_ = 0;  // steps in the averages
  double step_seconds_ = 0;
  double tokens_per_second_ = 0;
  std::string line_;   // kept for its memory
  bool open_ = false;  // a line is on the terminal that may be rewritten
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_PROGRESS_H_
