#include "fsdp/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace shardgraph {
namespace {

// Steps that an average reaches back, roughly.
constexpr int64_t kWindow = 20;

}  // namespace

bool IsTerminal(std::FILE* file) {
  const char* const kind = std::getenv("TERM");
  return isatty(fileno(file)) != 0 && kind != nullptr &&
         std::string(kind) != "dumb";
}

std::string PrintDuration(double seconds) {
  if (seconds < 9.95) return absl::StrFormat("%.1f s", seconds);
  const int64_t whole = std::llround(seconds);
  if (whole < 60) return absl::StrFormat("%d s", whole);
  if (whole < 3600)
    return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  const int64_t minutes = std::llround(seconds / 60);
  if (minutes < 48 * 60)
    return absl::StrFormat("%d h %02d min", minutes / 60, minutes % 60);
  const int64_t hours = std::llround(seconds / 3600);
  return absl::StrFormat("%d d %02d h", hours / 24, hours % 24);
}

std::string PrintRate(double per_second) {
  if (per_second < 999.5) return absl::StrFormat("%.0f", per_second);
  if (per_second < 999.5e3) return absl::StrFormat("%.3g k", per_second / 1e3);
  return absl::StrFormat("%.3g M", per_second / 1e6);
}

ProgressLine::ProgressLine(const ProgressOptions& options)
    : options_(options) {}

ProgressLine::~ProgressLine() {
  if (open_) std::fputc('\n', options_.file);
  std::fflush(options_.file);
}

absl::Status ProgressLine::Write(const StepMetrics& metrics) {
  // The first step, which warms up, leaves the averages soon.
  measured_ = std::min(measured_ + 1, kWindow);
  const double weight = measured_ == 2 ? 1.0 : 1.0 / measured_;
  step_seconds_ += weight * (metrics.step_seconds - step_seconds_);
  tokens_per_second_ +=
      weight * (metrics.tokens_per_second - tokens_per_second_);

  const bool last = metrics.step == options_.steps;
  if (!last && metrics.step % std::max<int64_t>(options_.log_every, 1) != 0)
    return absl::OkStatus();
  const std::string step = absl::StrCat(metrics.step);
  const std::string steps = absl::StrCat(options_.steps);
  line_ = "step ";
  line_.append(steps.size() > step.size() ? steps.size() - step.size() : 0,
               ' ');
  absl::StrAppend(&line_, step, "/", steps);
  absl::StrAppendFormat(&line_, "  loss %.4f  ", metrics.loss);
  absl::StrAppend(&line_, PrintRate(tokens_per_second_), " tokens/s");
  if (metrics.skipped) line_.append("  skipped: not finite");
  if (!last) {
    absl::StrAppend(
        &line_, "  ",
        PrintDuration(step_seconds_ * (options_.steps - metrics.step)),
        " left");
  }
  Print(last);
  return absl::OkStatus();
}

absl::Status ProgressLine::Write(const EvaluationMetrics& metrics) {
  line_ = absl::StrFormat("step %d  held-out loss %.4f (%d tokens)",
                          metrics.step, metrics.loss, metrics.tokens);
  Print(true);
  return absl::OkStatus();
}

void ProgressLine::Print(bool keep) {
  if (options_.terminal) {
    line_.insert(0, "\r");
    line_.append(keep ? "\x1b[K\n" : "\x1b[K");
    open_ = !keep;
  } else {
    line_.append("\n");
  }
  std::fwrite(line_.data(), 1, line_.size(), options_.file);
  std::fflush(options_.file);
}

}  // namespace shardgraph
