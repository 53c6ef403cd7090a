// Memory that processes of one host share, and what they need to wait for each
// other in it: futexes, a first-error cell, and a watch on other processes.
//
// A segment is a memfd: it has no name in any file system, so nothing is left
// behind however the processes end. Others open it through the /proc folder of
// its maker, which must therefore run as the same user in the same PID
// namespace.
#ifndef KERNELS_COLLECTIVE_SHARED_SEGMENT_H_
#define KERNELS_COLLECTIVE_SHARED_SEGMENT_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace shardgraph {

// A mapped segment. The memory lives until the last mapping of it is gone.
class SharedSegment {
 public:
  // New, zero filled. Memory is taken page by page when first written.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(
      absl::string_view name, int64_t bytes);
  // The segment of another process, which still holds it.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Open(
      absl::string_view address);
  ~SharedSegment();

  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // For Open in another process: process id, descriptor, device, inode and
  // size in decimal.
  std::string address() const;

 private:
  SharedSegment(int fd, char* data, int64_t bytes)
      : fd_(fd), data_(data), bytes_(bytes) {}

  const int fd_;
  char* const data_;
  const int64_t bytes_;
};

// Sleeps while `word` is `expected`, at most `timeout`; may return early.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               absl::Duration timeout);
// Wakes all who wait for `word`, in every process.
void FutexWake(std::atomic<uint32_t>& word);

// The first error of several processes; lies in a segment, zero filled memory
// being the empty cell. Never blocks, even if a process dies while writing.
class ErrorCell {
 public:
  // Keeps `error` unless there is one already, and returns the one kept.
  absl::Status SetOrGet(const absl::Status& error);
  // OK when empty.
  absl::Status Get() const;

 private:
  std::atomic<uint32_t> state_;  // 0 empty, 1 being written, 2 set
  int32_t code_;
  char text_[2040];
};

// Tells whether a process of this host has ended, without being its parent and
// without mistaking a new process of the same id for it.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t pid);
  ~ProcessWatch();

  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  pid_t pid() const { return pid_; }
  bool HasEnded() const;

 private:
  const pid_t pid_;
  int pidfd_;
};

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_SHARED_SEGMENT_H_
