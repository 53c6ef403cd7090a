// Wrap policies: pure functions from a module tree to the set of unit roots.
#ifndef FSDP_SHARD_WRAP_POLICY_H_
#define FSDP_SHARD_WRAP_POLICY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/model/module.h"
#include "proto/shard.pb.h"

namespace shardgraph {

struct UnitRoot {
  const Module* module = nullptr;
  // Elements of the subtree less those of units inside it. A tied parameter
  // counts for its first owner only, although the unit that holds it is the
  // lowest one around all owners (flat_parameter.h).
  int64_t numel = 0;
};

// The root first, then in registration order. The root is always a unit: the
// outer one, for what is left. Errors name the field of `shard`, its value and
// the remedy.
//
// BY_BLOCK: transformer blocks, and outside of them every module that owns a
// table (a parameter of two dimensions): embeddings, a head of its own.
// SIZE_BASED: PyTorch's size_based_auto_wrap_policy: a module whose elements,
// less those of the children wrapped before it, are at least min_num_params is
// wrapped; ModuleLists never are, attention is not looked into.
absl::StatusOr<std::vector<UnitRoot>> SelectUnits(const Model& model,
                                                  const ShardSpec& spec);

}  // namespace shardgraph

#endif  // FSDP_SHARD_WRAP_POLICY_H_
