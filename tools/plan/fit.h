// What would make a plan fit into a target's memory.
#ifndef TOOLS_PLAN_FIT_H_
#define TOOLS_PLAN_FIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/train/training_plan.h"

namespace shardgraph {

// Changes that were planned and fit.
struct FittingSetting {
  // As on the command line: "shard.recompute=FULL data.micro_batch_size=1",
  // "--world_size=32".
  std::string settings;
  int64_t arena_bytes = 0;
};

// Plans the request's changes one by one and returns those that need at most
// the target's memory_bytes: recomputation, smaller micro-batches, a larger
// world; then, when none of them alone is enough, together. At most a dozen
// plans are made.
std::vector<FittingSetting> SettingsThatFit(const PlanRequest& request);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_FIT_H_
