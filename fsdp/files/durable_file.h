// DurableFile: a file that appears under its name whole or not at all.
//
// It is written as PATH.tmp; Commit flushes it to the disk and renames it. One
// that is not committed leaves nothing behind. One thread at a time.
#ifndef FSDP_FILES_DURABLE_FILE_H_
#define FSDP_FILES_DURABLE_FILE_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

class DurableFile {
 public:
  enum class Cache {
    kUsed,
    // Appended data go to the disk past the cache of the system, in pieces of
    // 2 MiB: less work for the processor, and no memory that others would use.
    // Whole pages in memory on a page are not even copied, where whole pages
    // stand before them. Where the file system cannot, as if kUsed.
    kBypassed
  };
  static constexpr int64_t kPage = 4096;

  // Unavailable naming the path and the reason, here and below.
  static absl::StatusOr<std::unique_ptr<DurableFile>> Create(
      const std::string& path, Cache cache = Cache::kUsed);
  ~DurableFile();
  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  absl::Status Append(absl::string_view data);
  // Replaces bytes that have been appended.
  absl::Status WriteAt(int64_t offset, absl::string_view data);
  absl::Status Commit();

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };

  DurableFile() = default;
  absl::Status Write(int64_t offset, absl::string_view data);
  // Writes whole pages past the cache; says how much, less than `bytes` where
  // the file system can no more.
  absl::StatusOr<size_t> WritePages(const char* data, size_t bytes);
  absl::Status WriteBuffered();
  // Writes what is left, and all that follows, through the cache.
  absl::Status UseCache();

  std::string path_, temporary_;
  int file_ = -1;
  int64_t size_ = 0;                    // without what is buffered
  std::unique_ptr<char, Free> buffer_;  // null: the cache is used
  size_t buffered_ = 0;
};

// Create, Append, Commit.
absl::Status WriteDurableFile(const std::string& path, absl::string_view data);

// Makes the entries of a folder (renames, new files) survive a power failure.
absl::Status SyncFolder(const std::string& path);

// Errors name the path.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

}  // namespace shardgraph

#endif  // FSDP_FILES_DURABLE_FILE_H_
