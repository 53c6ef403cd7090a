#include "tools/program/program.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace shardgraph {

std::string UserPath(absl::string_view path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || absl::StartsWith(path, "/") || directory == nullptr)
    return std::string(path);
  return absl::StrCat(directory, "/", path);
}

int ExitStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
    case absl::StatusCode::kCancelled:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 2;
    default:
      return 1;
  }
}

absl::Status DamageIsWrongInput(const absl::Status& status) {
  return absl::IsDataLoss(status) ? absl::InvalidArgumentError(status.message())
                                  : status;
}

int Finish(absl::string_view program, const absl::Status& status) {
  if (absl::IsCancelled(status)) {
    std::fputs(std::string(status.message()).c_str(), stdout);
  } else if (!status.ok()) {
    std::fprintf(stderr, "%s: %s\n", std::string(program).c_str(),
                 std::string(status.message()).c_str());
  }
  return ExitStatus(status);
}

}  // namespace shardgraph
