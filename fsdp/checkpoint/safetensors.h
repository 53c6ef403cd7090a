// Safetensors files: a reader that maps the file and trusts nothing in it, and
// a writer that streams.
//
// Format (little-endian): u64 N, N bytes of JSON, data. The JSON maps a name to
// {"dtype", "shape", "data_offsets": [begin, end]}, offsets in bytes from the
// start of the data; "__metadata__" maps strings to strings. The tensors tile
// the data without gap or overlap.
// https://github.com/huggingface/safetensors#format
#ifndef FSDP_CHECKPOINT_SAFETENSORS_H_
#define FSDP_CHECKPOINT_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fsdp/files/durable_file.h"
#include "kernels/tensor.h"

namespace shardgraph {

struct SafetensorsEntry {
  std::string name;
  std::string dtype_name;      // as written: "F32", "BOOL", "F8_E4M3", ...
  std::optional<DType> dtype;  // where it is one of ours
  Dims shape;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

// Immutable; safe to use from several threads.
class SafetensorsFile {
 public:
  // NotFound when there is no such file; InvalidArgument names the file, the
  // tensor and what is wrong.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(
      const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  // In order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // Null when there is none.
  const SafetensorsEntry* Find(absl::string_view name) const;
  // The tensor's bytes; they may be unaligned.
  absl::string_view Data(const SafetensorsEntry& entry) const {
    return absl::string_view(data_ + entry.begin, entry.end - entry.begin);
  }
  // What stands before the data.
  absl::string_view Header() const {
    return absl::string_view(map_, data_ - map_);
  }
  // Gives back the memory that holds the tensor's bytes, and what came in with
  // them; they are read from the file again when they are looked at.
  void Release(const SafetensorsEntry& entry) const {
    Release(entry, 0, entry.end - entry.begin);
  }
  // The same of bytes [begin, end) of the tensor.
  void Release(const SafetensorsEntry& entry, int64_t begin, int64_t end) const;
  // And of the header.
  void ReleaseHeader() const { ReleaseBytes(map_, data_); }

 private:
  SafetensorsFile() = default;
  void ReleaseBytes(const char* begin, const char* end) const;

  std::string path_;
  const char* map_ = nullptr;
  int64_t map_bytes_ = 0;
  const char* data_ = nullptr;
  std::map<std::string, std::string> metadata_;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, int> index_;
};

// What SafetensorsFile::Open checks, on a file in memory: fills entries and
// metadata, returns where the data starts. Messages do not name the file.
absl::StatusOr<int64_t> ParseSafetensors(
    absl::string_view file, std::vector<SafetensorsEntry>* entries,
    std::map<std::string, std::string>* metadata);

// Elements [begin, begin + out.size()) of the data of an entry as F32, rounded
// to nearest even from F64. The dtype is a floating one.
void ReadAsFloat(DType dtype, absl::string_view data, int64_t begin,
                 absl::Span<float> out);

// What stands before the data of a file.
struct SafetensorsHeader {
  // In the order of their data: larger dtypes first, so that every tensor is
  // aligned, then by name.
  std::vector<SafetensorsEntry> entries;
  std::string text;  // its length included
};

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
};

// Names are unique and not "__metadata__". Spaces make its length a multiple of
// `alignment`, itself one of 8. InvalidArgument: it is longer than readers
// take.
absl::StatusOr<SafetensorsHeader> MakeSafetensorsHeader(
    absl::Span<const SafetensorsTensor> tensors,
    std::map<std::string, std::string> metadata, size_t alignment = 8);

// Writes a file front to back. It appears under its name when Close has
// succeeded.
class SafetensorsWriter {
 public:
  using Tensor = SafetensorsTensor;

  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, SafetensorsHeader header);
  // With the header of these.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, absl::Span<const Tensor> tensors,
      std::map<std::string, std::string> metadata);

  // In the order in which their data is to be appended.
  const std::vector<SafetensorsEntry>& entries() const {
    return header_.entries;
  }
  // What stands before the data.
  const std::string& header() const { return header_.text; }
  absl::Status Append(absl::string_view data);
  // All data has been appended. Errors name the file and the reason.
  absl::Status Close();

 private:
  SafetensorsWriter() = default;

  std::unique_ptr<DurableFile> file_;
  SafetensorsHeader header_;
  int64_t remaining_ = 0;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_SAFETENSORS_H_
