#include "fsdp/files/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace shardgraph {

AppendFile::AppendFile(std::string path, int file)
    : path_(std::move(path)), file_(file) {}

AppendFile::~AppendFile() { close(file_); }

absl::StatusOr<std::unique_ptr<AppendFile>> AppendFile::Open(
    const std::string& path) {
  const int file =
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return std::unique_ptr<AppendFile>(new AppendFile(path, file));
}

absl::Status AppendFile::Append(absl::string_view record) {
  const size_t size = record.size();
  while (!record.empty()) {
    const ssize_t written = write(file_, record.data(), record.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      // No part of a record stays.
      const off_t end = lseek(file_, 0, SEEK_END);
      const off_t begun = static_cast<off_t>(size - record.size());
      const bool cut = begun == 0 || ftruncate(file_, end - begun) == 0;
      return absl::UnavailableError(
          absl::StrCat("cannot write ", path_, ": ", std::strerror(error),
                       cut ? "" : ", and half a record stays in it"));
    }
    record.remove_prefix(written);
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
