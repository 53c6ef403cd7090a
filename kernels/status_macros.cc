#include "kernels/status_macros.h"

namespace shardgraph::internal {

std::unique_ptr<std::string> CheckIsOk(const absl::Status& status,
                                       const char* what) {
  if (status.ok()) [[likely]] {
    return nullptr;
  }
  return std::make_unique<std::string>(std::string(what) +
                                       " is OK: " + status.ToString());
}

}  // namespace shardgraph::internal
