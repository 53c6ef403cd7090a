// AsInternal: an error that no input can have caused, marked as ours.
//
// InvalidArgument, NotFound, FailedPrecondition and OutOfRange tell a user that
// a flag, config or input file is wrong, and programs end with status 2 for
// them. Stages that are given only what has been checked before (passes over
// the graph, the executor) may use these codes among themselves; where they
// hand errors to a program, the codes become Internal. Others stay.
#ifndef KERNELS_INTERNAL_ERROR_H_
#define KERNELS_INTERNAL_ERROR_H_

#include "absl/status/status.h"

namespace shardgraph {

// Whether the code says that what the user gave is wrong.
inline bool IsWrongInput(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return true;
    default:
      return false;
  }
}

inline absl::Status AsInternal(const absl::Status& status) {
  return IsWrongInput(status) ? absl::InternalError(status.message()) : status;
}

}  // namespace shardgraph

#endif  // KERNELS_INTERNAL_ERROR_H_
