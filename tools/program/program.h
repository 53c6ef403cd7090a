// What every program needs: paths as the user typed them, exit statuses.
#ifndef TOOLS_PROGRAM_PROGRAM_H_
#define TOOLS_PROGRAM_PROGRAM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

// `path`, a relative one taken from where the user typed the command (`bazel
// run` starts programs elsewhere and says so in BUILD_WORKING_DIRECTORY).
std::string UserPath(absl::string_view path);

// 0 done, Cancelled included; 2 a wrong flag, config or input file
// (IsWrongInput of kernels/internal_error.h); 1 anything else. Stages that get
// no input of their own hand up Internal instead.
int ExitStatus(const absl::Status& status);

// DataLoss as InvalidArgument: a damaged file that the user named is a wrong
// input.
absl::Status DamageIsWrongInput(const absl::Status& status);

// Prints "PROGRAM: message" on stderr unless the status is OK; ExitStatus.
// Cancelled is --help (flags.h): its message goes to stdout.
int Finish(absl::string_view program, const absl::Status& status);

}  // namespace shardgraph

#endif  // TOOLS_PROGRAM_PROGRAM_H_
