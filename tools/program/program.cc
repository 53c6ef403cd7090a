#include "tools/program/program.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/internal_error.h"

namespace shardgraph {

std::string UserPath(absl::string_view path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (path.empty() || absl::StartsWith(path, "/") || directory == nullptr)
    return std::string(path);
  return absl::StrCat(directory, "/", path);
}

int ExitStatus(const absl::Status& status) {
  if (status.ok() || absl::IsCancelled(status)) return 0;
  return IsWrongInput(status) ? 2 : 1;
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
