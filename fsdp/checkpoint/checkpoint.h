// Checkpoints: saving a training run and loading it at any world size.
//
// Every rank writes what it holds, masters and moments in FP32 as boxes of
// whole tensors, into safetensors files of its own; rank 0 writes the manifest
// last. A checkpoint is written as step_0000100.tmp and renamed when it is
// complete. All ranks see the same file system.
//
// Files are named shard-RANK-model-I-of-N.safetensors and carry the offsets of
// their boxes in __metadata__, so that torch.distributed.checkpoint's
// HuggingFaceStorageReader (tried with torch 2.8) reads the folder: a tensor
// appears once in a file, and a range that cuts rows takes up to three files.
#ifndef FSDP_CHECKPOINT_CHECKPOINT_H_
#define FSDP_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "proto/checkpoint.pb.h"

namespace shardgraph {

// One rank of a run. Pointers outlive the call.
struct CheckpointRank {
  const TrainConfig* config = nullptr;  // resolved
  const TrainingPlan* plan = nullptr;
  Executor* executor = nullptr;
  int rank = 0;
  int world_size = 1;
};

struct SaveOptions {
  std::string folder;  // of the checkpoints; made when missing
  int64_t step = 0;    // steps that have been taken
  std::map<std::string, std::string> extra;
  // Returns when every rank has called it; null in a world of one. Called once.
  std::function<absl::Status()> barrier;
};

// Collective: all ranks save alike. Afterwards the newest
// config.checkpoint.keep_last checkpoints are kept (0: all). Errors name the
// file; the checkpoints that were there stay.
absl::Status SaveCheckpoint(const CheckpointRank& rank,
                            const SaveOptions& options);

// Reads a checkpoint into this rank's shards: masters, compute copies, and,
// unless `weights_only`, moments and StepState. Plans without moments (no
// training) take the weights only. DataLoss: the checkpoint is damaged;
// FailedPrecondition: it is of another model or optimizer.
absl::StatusOr<CheckpointManifest> LoadCheckpoint(const std::string& folder,
                                                  const CheckpointRank& rank,
                                                  bool weights_only = false);

// Loads the newest checkpoint of the folder that is whole on all ranks;
// damaged ones are named on stderr (rank by rank) and passed over. nullopt when
// there is none at all; DataLoss when all are damaged. `agree` returns on every
// rank whether all ranks gave true; null in a world of one.
absl::StatusOr<std::optional<CheckpointManifest>> LoadNewestCheckpoint(
    const std::string& folder, const CheckpointRank& rank,
    const std::function<absl::StatusOr<bool>(bool mine)>& agree);

// Whether a run of `config` may go on from the checkpoint: the order of data
// and the optimizer are the same. FailedPrecondition names the field and both
// values.
absl::Status CheckContinues(const CheckpointManifest& manifest,
                            const TrainConfig& config);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_CHECKPOINT_H_
