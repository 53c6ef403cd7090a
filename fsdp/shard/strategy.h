// Strategies: how ranks are split into groups, and what each of them keeps. The
// one place that tells strategies apart; passes and trainer see only this.
#ifndef FSDP_SHARD_STRATEGY_H_
#define FSDP_SHARD_STRATEGY_H_

#include "absl/status/statusor.h"
#include "proto/shard.pb.h"

namespace shardgraph {

// Rank r is member r % shard of the shard group r / shard, and member r / shard
// of the replicate group r % shard.
struct ShardGroups {
  int shard = 1;      // ranks that share one set of shards
  int replicate = 1;  // sets of shards, all the same
  // The parameters are also kept whole, in the compute dtype: gathered once a
  // step, after the update, instead of where they are used.
  bool whole_parameters = false;
  // Ranks that share the parameters of a unit from forward to backward, which
  // gathers them within these groups: of `shard`, or fewer, which keep larger
  // pieces. Rank r is member r % reshard of the reshard group r / reshard.
  int reshard = 1;

  int world() const { return shard * replicate; }
};

// The groups of a strategy in a world:
// - FULL_SHARD, SHARD_GRAD_OP: one shard group.
// - ZERO1: the same, with whole parameters.
// - NO_SHARD: shard groups of one rank.
// - HYBRID: shard groups of shard_group_size, which must divide the world.
// Reshard groups are those of reshard_group_size, which must divide the shard
// group; the shard groups themselves if it is 0. Errors name field and value.
absl::StatusOr<ShardGroups> GroupsOf(const ShardSpec& spec, int world_size);

// Into how many pieces a shard is cut to be reduced over replicas: in BF16 they
// exchange pieces.
int PiecesOf(const ShardGroups& groups, Dtype reduce);

// Whether a strategy gathers parameters for each use, so that they can be given
// up after forward (ShardSpec::reshard_after_forward).
bool MayReshard(ShardStrategy strategy);

}  // namespace shardgraph

#endif  // FSDP_SHARD_STRATEGY_H_
