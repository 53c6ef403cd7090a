// Flags of our programs: --name=value (or --name value), with errors that name
// the nearest flag. Abseil's own parser ends the process with status 1 on an
// unknown flag; ours end with 2 (program.h).
#ifndef TOOLS_PROGRAM_FLAGS_H_
#define TOOLS_PROGRAM_FLAGS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

struct Flag {
  std::string name;  // without dashes
  // Where its value goes; holds the default before. A bool may be given without
  // a value.
  std::variant<std::string*, int64_t*, double*, bool*,
               std::vector<std::string>*>
      value;
  std::string help;  // one line
};

// Sets flags from `args` (the program's name left out) and collects what is not
// a flag. "--" ends the flags. --help gives Cancelled with the usage text as
// its message. InvalidArgument names flag, value, what is allowed, and the
// nearest name.
absl::Status ParseFlags(absl::string_view usage,
                        const std::vector<std::string>& args,
                        const std::vector<Flag>& flags,
                        std::vector<std::string>* positional);

// The arguments of main without the program.
std::vector<std::string> ArgumentsOf(int argc, char** argv);

}  // namespace shardgraph

#endif  // TOOLS_PROGRAM_FLAGS_H_
