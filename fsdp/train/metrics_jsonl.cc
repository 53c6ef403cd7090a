#include "fsdp/train/metrics_jsonl.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

// Appends `, "key": number`, with the shortest text that reads as the same
// number.
void AppendNumber(absl::string_view key, double value, std::string* line) {
  absl::StrAppend(line, ", \"", key, "\": ");
  if (!std::isfinite(value)) {
    line->append("null");
    return;
  }
  char text[32];
  const std::to_chars_result end =
      std::to_chars(text, text + sizeof(text), value);
  line->append(text, end.ptr);
}

// Lines of steps up to `steps_done`.
std::string Kept(absl::string_view text, int64_t steps_done) {
  std::string kept;
  while (true) {
    const size_t end = text.find('\n');
    if (end == absl::string_view::npos) return kept;
    const absl::string_view line = text.substr(0, end);
    const nlohmann::json json = ParseJson(line);
    if (json.is_object() && json.contains("step") &&
        json["step"].is_number_integer() &&
        json["step"].get<int64_t>() <= steps_done) {
      absl::StrAppend(&kept, line, "\n");
    }
    text.remove_prefix(end + 1);
  }
}

}  // namespace

MetricsJsonl::MetricsJsonl(std::unique_ptr<AppendFile> file)
    : file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<MetricsJsonl>> MetricsJsonl::Open(
    const std::string& path, int64_t steps_done) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    SG_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
    const std::string kept = Kept(text, steps_done);
    if (kept.size() != text.size())
      SG_RETURN_IF_ERROR(WriteDurableFile(path, kept));
  }
  SG_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, AppendFile::Open(path));
  return std::unique_ptr<MetricsJsonl>(new MetricsJsonl(std::move(file)));
}

absl::Status MetricsJsonl::Write(const StepMetrics& metrics) {
  line_.clear();
  absl::StrAppend(&line_, "{\"step\": ", metrics.step);
  AppendNumber("loss", metrics.loss, &line_);
  AppendNumber("learning_rate", metrics.learning_rate, &line_);
  AppendNumber("grad_norm", metrics.gradient_norm, &line_);
  absl::StrAppend(&line_, ", \"tokens\": ", metrics.tokens);
  AppendNumber("tokens_per_second", metrics.tokens_per_second, &line_);
  AppendNumber("step_seconds", metrics.step_seconds, &line_);
  AppendNumber("mfu", metrics.mfu, &line_);
  if (metrics.loss_scale != 1)
    AppendNumber("loss_scale", metrics.loss_scale, &line_);
  if (metrics.skipped) line_.append(", \"skipped\": true");
  line_.append("}\n");
  return file_->Append(line_);
}

absl::Status MetricsJsonl::Write(const EvaluationMetrics& metrics) {
  line_.clear();
  absl::StrAppend(&line_, "{\"step\": ", metrics.step);
  AppendNumber("eval_loss", metrics.loss, &line_);
  absl::StrAppend(&line_, ", \"eval_tokens\": ", metrics.tokens, "}\n");
  return file_->Append(line_);
}

}  // namespace shardgraph
