#include "fsdp/files/durable_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// A page of the larger kind, which the system finds and locks in one piece.
constexpr size_t kBufferBytes = 2 << 20;

absl::Status Failed(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", path, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DurableFile>> DurableFile::Create(
    const std::string& path, Cache cache) {
  std::unique_ptr<DurableFile> file(new DurableFile());
  file->path_ = path;
  file->temporary_ = absl::StrCat(path, ".tmp");
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  if (cache == Cache::kBypassed) {
    file->file_ = open(file->temporary_.c_str(), kFlags | O_DIRECT, 0666);
    if (file->file_ >= 0) {
      file->buffer_.reset(
          static_cast<char*>(std::aligned_alloc(kBufferBytes, kBufferBytes)));
      SG_CHECK(file->buffer_ != nullptr) << "no memory to write " << path;
      madvise(file->buffer_.get(), kBufferBytes, MADV_HUGEPAGE);
    }
  }
  if (file->file_ < 0)
    file->file_ = open(file->temporary_.c_str(), kFlags, 0666);
  if (file->file_ < 0) return Failed("write", path);
  return file;
}

DurableFile::~DurableFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

absl::Status DurableFile::Append(absl::string_view data) {
  while (buffer_ != nullptr && !data.empty()) {
    const size_t pages = data.size() / kPage * kPage;
    if (pages > 0 && buffered_ % kPage == 0 &&
        reinterpret_cast<uintptr_t>(data.data()) % kPage == 0) {
      SG_RETURN_IF_ERROR(WriteBuffered());
      if (buffer_ == nullptr) break;
      SG_ASSIGN_OR_RETURN(const size_t written, WritePages(data.data(), pages));
      data.remove_prefix(written);
      if (written < pages) SG_RETURN_IF_ERROR(UseCache());
      continue;
    }
    const size_t n = std::min(data.size(), kBufferBytes - buffered_);
    std::memcpy(buffer_.get() + buffered_, data.data(), n);
    buffered_ += n;
    data.remove_prefix(n);
    if (buffered_ == kBufferBytes) SG_RETURN_IF_ERROR(WriteBuffered());
  }
  SG_RETURN_IF_ERROR(Write(size_, data));
  size_ += static_cast<int64_t>(data.size());
  return absl::OkStatus();
}

absl::StatusOr<size_t> DurableFile::WritePages(const char* data, size_t bytes) {
  size_t written = 0;
  while (written < bytes) {
    const ssize_t n = pwrite(file_, data + written,
                             std::min(bytes - written, kBufferBytes), size_);
    if (n < 0 && errno == EINTR) continue;
    // The file system takes no such writes, or not from there on.
    if (n < 0 && errno == EINVAL) break;
    if (n < 0) return Failed("write", path_);
    written += n;
    size_ += n;
  }
  return written;
}

absl::Status DurableFile::WriteBuffered() {
  SG_ASSIGN_OR_RETURN(const size_t written,
                      WritePages(buffer_.get(), buffered_));
  buffered_ -= written;
  if (buffered_ == 0) return absl::OkStatus();
  std::memmove(buffer_.get(), buffer_.get() + written, buffered_);
  return UseCache();
}

absl::Status DurableFile::UseCache() {
  if (buffer_ == nullptr) return absl::OkStatus();
  if (fcntl(file_, F_SETFL, 0) != 0) return Failed("write", path_);
  const auto buffer = std::move(buffer_);
  return Append({buffer.get(), buffered_});
}

absl::Status DurableFile::WriteAt(int64_t offset, absl::string_view data) {
  SG_RETURN_IF_ERROR(UseCache());
  return Write(offset, data);
}

absl::Status DurableFile::Write(int64_t offset, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t n = pwrite(file_, data.data(), data.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("write", path_);
    data.remove_prefix(n);
    offset += n;
  }
  return absl::OkStatus();
}

absl::Status DurableFile::Commit() {
  SG_RETURN_IF_ERROR(UseCache());
  if (fsync(file_) != 0) return Failed("write", path_);
  const int closed = close(file_);
  file_ = -1;
  if (closed != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const absl::Status status = Failed("write", path_);
    unlink(temporary_.c_str());
    return status;
  }
  return SyncFolder(std::filesystem::path(path_).parent_path().string());
}

absl::Status WriteDurableFile(const std::string& path, absl::string_view data) {
  SG_ASSIGN_OR_RETURN(const auto file, DurableFile::Create(path));
  SG_RETURN_IF_ERROR(file->Append(data));
  return file->Commit();
}

absl::Status SyncFolder(const std::string& path) {
  const std::string name = path.empty() ? "." : path;
  const int folder = open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Failed("open the folder", name);
  // Some file systems have no fsync of folders and say EINVAL.
  const bool failed = fsync(folder) != 0 && errno != EINVAL;
  const absl::Status status =
      failed ? Failed("flush the folder", name) : absl::OkStatus();
  close(folder);
  return status;
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    const std::string message =
        absl::StrCat("cannot read ", path, ": ", strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message)
                           : absl::InvalidArgumentError(message);
  }
  absl::Cleanup close_file = [file] { close(file); };
  std::string text;
  char buffer[65536];
  for (;;) {
    const ssize_t n = read(file, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failed("read", path);
    if (n == 0) return text;
    text.append(buffer, n);
  }
}

}  // namespace shardgraph
