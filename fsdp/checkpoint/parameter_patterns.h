// Which parameters of a model a user means by patterns.
#ifndef FSDP_CHECKPOINT_PARAMETER_PATTERNS_H_
#define FSDP_CHECKPOINT_PARAMETER_PATTERNS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/model/module.h"

namespace shardgraph {

// The parameters whose whole name matches one of the regular expressions of
// checkpoint.initialize_parameters; all of them if there are none. Without
// `adapters`, those of adapters are left out. InvalidArgument names a pattern
// that is none, or that matches nothing.
absl::StatusOr<std::set<const Parameter*>> MatchingParameters(
    const Model& model, const std::vector<std::string>& patterns,
    bool adapters);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_PARAMETER_PATTERNS_H_
