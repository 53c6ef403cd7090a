// AppendFile: a file that grows by whole records; each is with the operating
// system when Append returns.
#ifndef FSDP_FILES_APPEND_FILE_H_
#define FSDP_FILES_APPEND_FILE_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

class AppendFile {
 public:
  // Makes the file if there is none. Errors are Unavailable and name the path
  // and the reason.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Open(
      const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  absl::Status Append(absl::string_view record);
  const std::string& path() const { return path_; }

 private:
  AppendFile(std::string path, int file);

  const std::string path_;
  const int file_;
};

}  // namespace shardgraph

#endif  // FSDP_FILES_APPEND_FILE_H_
