// ParameterGroups: which parameters are trained, and the optimizer group of
// each.
#ifndef FSDP_SHARD_PARAMETER_GROUPS_H_
#define FSDP_SHARD_PARAMETER_GROUPS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/model/module.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Optimizer groups of parameters that no pattern names.
inline constexpr int32_t kDecayGroup =
    0;  // parameters of two or more dimensions
inline constexpr int32_t kNoDecayGroup = 1;  // biases, norms
// The group of what is not trained.
inline constexpr int32_t kFrozenGroup = -1;

class ParameterGroups {
 public:
  struct Group {
    double learning_rate_factor = 1;
    double weight_decay = 0;
  };
  // OptimizerSpec::groups at most: each makes two groups, by dimensions.
  static constexpr int kMaxPatterns = 3;

  // Without patterns, and without weight decay.
  ParameterGroups() : groups_(2) {}
  // Of a model with adapters everything else is frozen.
  // Errors name the pattern and the remedy: one that is no regular expression
  // or matches nothing, too many, nothing left to train. `model` outlives the
  // groups.
  static absl::StatusOr<ParameterGroups> Create(const Model& model,
                                                const OptimizerSpec& spec);

  int32_t Of(const Parameter& parameter) const;
  // By group; the first two are those above.
  const std::vector<Group>& groups() const { return groups_; }

 private:
  std::vector<Group> groups_;
  std::map<const Parameter*, int32_t> of_;  // those that a pattern names
};

}  // namespace shardgraph

#endif  // FSDP_SHARD_PARAMETER_GROUPS_H_
