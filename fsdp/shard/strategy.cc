#include "fsdp/shard/strategy.h"

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// All but the reshard groups.
absl::StatusOr<ShardGroups> MeshOf(const ShardSpec& spec, int world_size) {
  if (world_size < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("a world of ", world_size, " ranks; use 1 or more"));
  const int size = spec.shard_group_size();
  if (spec.strategy() != HYBRID && size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.shard_group_size is ", size, ", but shard.strategy is ",
        ShardStrategy_Name(spec.strategy()),
        "; leave it out, or set shard.strategy=HYBRID"));
  }
  switch (spec.strategy()) {
    case NO_SHARD:
      return ShardGroups{1, world_size};
    case ZERO1:
      return ShardGroups{world_size, 1, world_size > 1};
    case HYBRID:
      if (size < 1 || world_size % size != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "shard.shard_group_size is ", size,
            "; with shard.strategy HYBRID it must divide the world of ",
            world_size, " ranks"));
      }
      return ShardGroups{size, world_size / size};
    default:
      return ShardGroups{world_size, 1};
  }
}

}  // namespace

absl::StatusOr<ShardGroups> GroupsOf(const ShardSpec& spec, int world_size) {
  SG_ASSIGN_OR_RETURN(ShardGroups groups, MeshOf(spec, world_size));
  groups.reshard = groups.shard;
  const int size = spec.reshard_group_size();
  if (size == 0) return groups;
  if (!MayReshard(spec.strategy()) ||
      (spec.has_reshard_after_forward() && !spec.reshard_after_forward())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.reshard_group_size is ", size, ", but shard.strategy ",
        ShardStrategy_Name(spec.strategy()),
        MayReshard(spec.strategy()) ? " with shard.reshard_after_forward=false"
                                    : "",
        " keeps parameters whole from forward to backward; leave it out, or "
        "set shard.strategy=FULL_SHARD and shard.reshard_after_forward=true"));
  }
  if (size < 1 || groups.shard % size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.reshard_group_size is ", size, "; it must divide the ",
        groups.shard, " ranks that share one set of shards",
        spec.strategy() == HYBRID ? " (shard.shard_group_size)" : ""));
  }
  groups.reshard = size;
  return groups;
}

int PiecesOf(const ShardGroups& groups, Dtype reduce) {
  return reduce == BF16 ? groups.replicate : 1;
}

bool MayReshard(ShardStrategy strategy) {
  return strategy == FULL_SHARD || strategy == HYBRID;
}

}  // namespace shardgraph
