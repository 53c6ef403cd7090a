#include "fsdp/train/tensorboard.h"

#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/files/crc32c.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void AppendLittleEndian(uint64_t value, int bytes, std::string* text) {
  for (int i = 0; i < bytes; ++i)
    text->push_back(static_cast<char>(value >> (8 * i)));
}

// Two files of one process within a second get different names.
int NextFileNumber() {
  static int number = 0;
  return number++;
}

}  // namespace

uint32_t MaskedCrc32c(absl::string_view data) {
  const uint32_t crc = Crc32c(data);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

void MakeEventRecord(absl::string_view data, std::string* record) {
  record->clear();
  AppendLittleEndian(data.size(), 8, record);
  AppendLittleEndian(MaskedCrc32c(*record), 4, record);
  absl::StrAppend(record, data);
  AppendLittleEndian(MaskedCrc32c(data), 4, record);
}

TensorBoardWriter::TensorBoardWriter(std::unique_ptr<AppendFile> file)
    : file_(std::move(file)) {}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Open(
    const std::string& directory, int64_t steps_done) {
  char host[256] = "localhost";
  gethostname(host, sizeof(host) - 1);
  const std::string path =
      absl::StrCat(directory, "/",
                   absl::StrFormat("events.out.tfevents.%010d.%s.%d.%d",
                                   static_cast<int64_t>(Now()), host, getpid(),
                                   NextFileNumber()));
  SG_ASSIGN_OR_RETURN(std::unique_ptr<AppendFile> file, AppendFile::Open(path));
  std::unique_ptr<TensorBoardWriter> writer(
      new TensorBoardWriter(std::move(file)));
  tensorboard::Event version;
  version.set_file_version("brain.Event:2");
  SG_RETURN_IF_ERROR(writer->Append(version));
  if (steps_done > 0) {
    tensorboard::Event start;
    start.set_step(steps_done + 1);
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    SG_RETURN_IF_ERROR(writer->Append(start));
  }
  return writer;
}

absl::Status TensorBoardWriter::Append(tensorboard::Event& event) {
  event.set_wall_time(Now());
  event.SerializeToString(&data_);
  MakeEventRecord(data_, &record_);
  return file_->Append(record_);
}

absl::Status TensorBoardWriter::AppendScalars(
    int64_t step,
    std::initializer_list<std::pair<const char*, double>> scalars) {
  scalars_.set_step(step);
  tensorboard::Summary& summary = *scalars_.mutable_summary();
  summary.clear_value();
  for (const auto& [tag, number] : scalars) {
    tensorboard::Summary::Value* value = summary.add_value();
    value->mutable_tag()->assign(tag);  // set_tag makes a copy
    value->set_simple_value(static_cast<float>(number));
  }
  return Append(scalars_);
}

absl::Status TensorBoardWriter::Write(const StepMetrics& metrics) {
  return AppendScalars(metrics.step,
                       {{"train/loss", metrics.loss},
                        {"train/learning_rate", metrics.learning_rate},
                        {"train/grad_norm", metrics.gradient_norm},
                        {"train/tokens", static_cast<double>(metrics.tokens)},
                        {"speed/tokens_per_second", metrics.tokens_per_second},
                        {"speed/step_seconds", metrics.step_seconds},
                        {"speed/mfu", metrics.mfu}});
}

absl::Status TensorBoardWriter::Write(const EvaluationMetrics& metrics) {
  return AppendScalars(metrics.step,
                       {{"eval/loss", metrics.loss},
                        {"eval/tokens", static_cast<double>(metrics.tokens)}});
}

}  // namespace shardgraph
