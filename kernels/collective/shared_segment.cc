#include "kernels/collective/shared_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace shardgraph {
namespace {

absl::Status Failed(absl::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("shared memory: ", what));
}

absl::StatusOr<char*> Map(int fd, int64_t bytes) {
  void* data = mmap(nullptr, std::max<int64_t>(bytes, 1),
                    PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return Failed(absl::StrCat("cannot map ", bytes, " bytes"), errno);
  }
  return static_cast<char*>(data);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(
    absl::string_view name, int64_t bytes) {
  const int fd = memfd_create(std::string(name).c_str(), MFD_CLOEXEC);
  if (fd < 0) return Failed("memfd_create", errno);
  if (ftruncate(fd, std::max<int64_t>(bytes, 1)) != 0) {
    const int error = errno;
    close(fd);
    return Failed(absl::StrCat("cannot make a segment of ", bytes, " bytes"),
                  error);
  }
  absl::StatusOr<char*> data = Map(fd, bytes);
  if (!data.ok()) {
    close(fd);
    return data.status();
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(fd, *data, bytes));
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Open(
    absl::string_view address) {
  const std::vector<std::string> fields = absl::StrSplit(address, ' ');
  int64_t pid = 0, peer_fd = 0, device = 0, inode = 0, bytes = 0;
  if (fields.size() != 5 || !absl::SimpleAtoi(fields[0], &pid) ||
      !absl::SimpleAtoi(fields[1], &peer_fd) ||
      !absl::SimpleAtoi(fields[2], &device) ||
      !absl::SimpleAtoi(fields[3], &inode) ||
      !absl::SimpleAtoi(fields[4], &bytes) || bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: '", address, "' is no segment address"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", peer_fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || fstat(fd, &info) != 0 ||
      static_cast<int64_t>(info.st_dev) != device ||
      static_cast<int64_t>(info.st_ino) != inode || info.st_size < bytes) {
    const std::string why = fd < 0 ? strerror(errno) : "another file";
    if (fd >= 0) close(fd);
    return absl::UnavailableError(absl::StrCat(
        "shared memory: cannot open the segment of process ", pid, " at ", path,
        ": ", why,
        "; ranks of one host must run as one user in one PID namespace and be "
        "alive"));
  }
  absl::StatusOr<char*> data = Map(fd, bytes);
  if (!data.ok()) {
    close(fd);
    return data.status();
  }
  return std::unique_ptr<SharedSegment>(new SharedSegment(fd, *data, bytes));
}

SharedSegment::~SharedSegment() {
  munmap(data_, std::max<int64_t>(bytes_, 1));
  close(fd_);
}

std::string SharedSegment::address() const {
  struct stat info {};
  fstat(fd_, &info);
  return absl::StrCat(getpid(), " ", fd_, " ",
                      static_cast<int64_t>(info.st_dev), " ",
                      static_cast<int64_t>(info.st_ino), " ", bytes_);
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected,
               absl::Duration timeout) {
  const timespec limit =
      absl::ToTimespec(std::max(timeout, absl::ZeroDuration()));
  // Not FUTEX_PRIVATE: the word is shared between processes.
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, expected,
          &limit, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX,
          nullptr, nullptr, 0);
}

absl::Status ErrorCell::SetOrGet(const absl::Status& error) {
  uint32_t empty = 0;
  if (state_.compare_exchange_strong(empty, 1)) {
    code_ = static_cast<int32_t>(error.code());
    const size_t n = std::min(error.message().size(), sizeof(text_) - 1);
    std::memcpy(text_, error.message().data(), n);
    text_[n] = 0;
    state_.store(2, std::memory_order_release);
    return error;
  }
  const absl::Status kept = Get();
  return kept.ok() ? error : kept;
}

absl::Status ErrorCell::Get() const {
  if (state_.load(std::memory_order_acquire) != 2) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(code_), text_);
}

ProcessWatch::ProcessWatch(pid_t pid) : pid_(pid) {
  pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  // Already gone (ESRCH) is told apart from a kernel without pidfd_open, where
  // signal 0 has to do.
  if (pidfd_ < 0 && errno == ESRCH) pidfd_ = -2;
}

ProcessWatch::~ProcessWatch() {
  if (pidfd_ >= 0) close(pidfd_);
}

bool ProcessWatch::HasEnded() const {
  if (pidfd_ == -2) return true;
  if (pidfd_ == -1) return kill(pid_, 0) != 0 && errno == ESRCH;
  pollfd poller{.fd = pidfd_, .events = POLLIN, .revents = 0};
  return poll(&poller, 1, 0) == 1;
}

}  // namespace shardgraph
