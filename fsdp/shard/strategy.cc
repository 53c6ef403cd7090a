#include "fsdp/shard/strategy.h"

#include "absl/strings/str_cat.h"

namespace shardgraph {

absl::StatusOr<ShardGroups> GroupsOf(const ShardSpec& spec, int world_size) {
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

int PiecesOf(const ShardGroups& groups, Dtype reduce) {
  return reduce == BF16 ? groups.replicate : 1;
}

bool MayReshard(ShardStrategy strategy) {
  return strategy == FULL_SHARD || strategy == HYBRID;
}

}  // namespace shardgraph
