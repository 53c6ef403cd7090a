// TensorBoardWriter: metrics as an event file that TensorBoard reads:
// events.out.tfevents.* of a run directory.
//
// A file is a sequence of records: u64 length, u32 masked CRC of these 8 bytes,
// data, u32 masked CRC of the data, little-endian; the data is a
// tensorboard.Event, the first one naming the file version.
// https://github.com/tensorflow/tensorboard (event_file_writer, record_writer)
#ifndef FSDP_TRAIN_TENSORBOARD_H_
#define FSDP_TRAIN_TENSORBOARD_H_

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fsdp/files/append_file.h"
#include "fsdp/train/metrics.h"
#include "proto/tensorboard.pb.h"

namespace shardgraph {

// CRC-32C, turned and shifted so that a CRC of data that holds CRCs is sound.
uint32_t MaskedCrc32c(absl::string_view data);

// The record that holds `data`, in place of what `record` held.
void MakeEventRecord(absl::string_view data, std::string* record);

class TensorBoardWriter final : public MetricsSink {
 public:
  // Starts a new file in `directory`. With `steps_done` > 0 (a resumed run) it
  // tells TensorBoard to forget what earlier files hold of later steps. Errors
  // are Unavailable and name the file.
  static absl::StatusOr<std::unique_ptr<TensorBoardWriter>> Open(
      const std::string& directory, int64_t steps_done);

  absl::Status Write(const StepMetrics& metrics) override;
  absl::Status Write(const EvaluationMetrics& metrics) override;

  const std::string& path() const { return file_->path(); }

 private:
  explicit TensorBoardWriter(std::unique_ptr<AppendFile> file);

  absl::Status Append(tensorboard::Event& event);
  absl::Status AppendScalars(
      int64_t step,
      std::initializer_list<std::pair<const char*, double>> scalars);

  std::unique_ptr<AppendFile> file_;
  // Kept for their memory.
  tensorboard::Event scalars_;
  std::string data_, record_;
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_TENSORBOARD_H_
