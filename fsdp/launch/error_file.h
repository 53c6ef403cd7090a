// The file in which a rank that fails tells its launcher why: torchrun's
// format, which our own launcher reads too.
//
//   {"message":{"message":"...","extraInfo":{"py_callstack":"...",
//               "timestamp":"<unix seconds>"}}}
#ifndef FSDP_LAUNCH_ERROR_FILE_H_
#define FSDP_LAUNCH_ERROR_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace shardgraph {

// Writes the file as a whole or not at all. Nothing happens when `path` is
// empty.
absl::Status WriteErrorFile(const std::string& path, const std::string& message,
                            absl::Time time);

struct RankError {
  std::string message;
  int64_t unix_seconds = 0;
};

// NotFound when there is none, InvalidArgument when it is something else.
absl::StatusOr<RankError> ReadErrorFile(const std::string& path);

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_ERROR_FILE_H_
