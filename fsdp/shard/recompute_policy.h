// RecomputePolicy: which activations of which units backward computes again
// instead of keeping them from forward: ShardSpec's recompute fields, bound to
// units.
#ifndef FSDP_SHARD_RECOMPUTE_POLICY_H_
#define FSDP_SHARD_RECOMPUTE_POLICY_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "fsdp/shard/flat_parameter.h"
#include "proto/shard.pb.h"

namespace shardgraph {

// Stands in recompute_ops for all that is inside feed-forward modules.
inline constexpr char kFeedForward[] = "feed_forward";

// A RecomputeUnits::pattern that matches units of these names alone.
std::string UnitPattern(absl::Span<const std::string> names);

class RecomputePolicy {
 public:
  RecomputePolicy() = default;  // nothing is computed again

  // InvalidArgument: a pattern that is none or matches no unit, ops without
  // SELECTIVE or the other way round, AUTO (which is to be resolved before).
  static absl::StatusOr<RecomputePolicy> Create(const ShardSpec& spec,
                                                const ShardLayout& layout);

  bool any() const { return any_; }
  // Whether what a node of this op, in the unit (index into
  // ShardLayout::units), writes is computed again. Nothing of the root is: it
  // is no unit to recompute, it is the loss.
  bool Recomputes(int unit, absl::string_view op, bool feed_forward) const;

 private:
  struct Choice {
    bool full = false;
    bool feed_forward = false;
    std::set<std::string, std::less<>> names;  // of ops and families
  };

  std::vector<Choice> units_;
  bool any_ = false;
};

}  // namespace shardgraph

#endif  // FSDP_SHARD_RECOMPUTE_POLICY_H_
