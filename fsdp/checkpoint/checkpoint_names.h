// Names of a checkpoint's tensors, for the code that saves and loads it.
#ifndef FSDP_CHECKPOINT_CHECKPOINT_NAMES_H_
#define FSDP_CHECKPOINT_CHECKPOINT_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "fsdp/train/shard_writer.h"

namespace shardgraph {

inline constexpr absl::string_view kOptimizerPrefix = "optimizer.";

// "NAME", "optimizer.exp_avg/NAME", "optimizer.exp_avg_sq/NAME".
inline std::string CheckpointTensorName(ShardKind kind,
                                        absl::string_view parameter) {
  switch (kind) {
    case ShardKind::kMaster:
      break;
    case ShardKind::kExpAvg:
      return absl::StrCat(kOptimizerPrefix, "exp_avg/", parameter);
    case ShardKind::kExpAvgSq:
      return absl::StrCat(kOptimizerPrefix, "exp_avg_sq/", parameter);
  }
  return std::string(parameter);
}

// What a plan keeps of a unit: weights, and the moments of its optimizer.
inline std::vector<ShardKind> KindsOf(const UnitBuffers& buffers) {
  std::vector<ShardKind> kinds = {ShardKind::kMaster};
  if (buffers.exp_avg != kNone) kinds.push_back(ShardKind::kExpAvg);
  if (buffers.exp_avg_sq != kNone) kinds.push_back(ShardKind::kExpAvgSq);
  return kinds;
}

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_CHECKPOINT_NAMES_H_
