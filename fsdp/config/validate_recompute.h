// What can be wrong with the recompute fields of a config, whatever the model.
#ifndef FSDP_CONFIG_VALIDATE_RECOMPUTE_H_
#define FSDP_CONFIG_VALIDATE_RECOMPUTE_H_

#include "absl/status/status.h"
#include "proto/shard.pb.h"

namespace shardgraph {

// InvalidArgument names the field, its value and the remedy. Patterns are
// checked where there are units (fsdp/shard/recompute_policy.h).
absl::Status ValidateRecompute(const ShardSpec& spec);

}  // namespace shardgraph

#endif  // FSDP_CONFIG_VALIDATE_RECOMPUTE_H_
