// DurableFile: a file that appears under its name whole or not at all.
//
// It is written as PATH.tmp; Commit flushes it to the disk and renames it. One
// that is not committed leaves nothing behind.
#ifndef FSDP_FILES_DURABLE_FILE_H_
#define FSDP_FILES_DURABLE_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

class DurableFile {
 public:
  // Unavailable naming the path and the reason, here and below.
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(
      const std::string& path);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  absl::Status Append(absl::string_view data);
  // Replaces bytes that have been appended.
  absl::Status WriteAt(int64_t offset, absl::string_view data);
  absl::Status Commit();

 private:
  DurableFile() = default;

  std::string path_, temporary_;
  int file_ = -1;
};

// Create, Append, Commit.
absl::Status WriteDurableFile(const std::string& path, absl::string_view data);

// Makes the entries of a folder (renames, new files) survive a power failure.
absl::Status SyncFolder(const std::string& path);

// Errors name the path.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace shardgraph

#endif  // FSDP_FILES_DURABLE_FILE_H_
