// Checkpoints: saving a training run and loading it at any world size.
//
// Every rank writes what it holds, masters and moments in FP32 as boxes of
// whole tensors, into safetensors files of its own, and tells rank 0 through
// the job's store, which writes the manifest last. A checkpoint is written as
// step_0000100.tmp and renamed when it is complete. All ranks see the same file
// system. Nothing here is a collective: a rank that cannot write holds up
// nobody. checkpoint_saver.h saves beside the training.
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
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/save_progress.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "kernels/collective/store.h"
#include "proto/checkpoint.pb.h"

namespace shardgraph {

class Snapshot;

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
  // Where the ranks tell rank 0 what they have written; null in a world of one.
  // No rank waits for others but rank 0, at most for `timeout`.
  Store* store = nullptr;
  std::string store_key = "checkpoint";  // of this save; used once at a time
  absl::Duration timeout = absl::InfiniteDuration();
  // What is saved, of this rank; null: what rank.executor holds.
  const Snapshot* snapshot = nullptr;
  SaveProgress* progress = nullptr;  // null: nobody looks at it
  // For tests: what is free on the disk; null: the file system is asked.
  std::function<absl::StatusOr<int64_t>(const std::string& path)> free_bytes;
};

// All ranks save alike, each its own part; a rank returns when it has told
// rank 0, rank 0 when the checkpoint is on the disk under its name, or is not
// to be had: a rank could not write (named), the disk has no room, a rank did
// not come. Afterwards the newest config.checkpoint.keep_last checkpoints are
// kept (0: all) and those of config.checkpoint.keep_every. Errors name the
// file; the checkpoints that were there stay.
absl::Status SaveCheckpoint(const CheckpointRank& rank,
                            const SaveOptions& options);

struct LoadOptions {
  bool weights_only = false;
  // Regular expressions of whole parameter names: what matches none is left
  // alone, and the checkpoint may be of another model in it. Empty: all is
  // loaded. With weights_only.
  std::vector<std::string> parameters;
};

// Reads a checkpoint into this rank's shards, whatever the world size,
// strategy, wrap policy and split into units of the run that wrote it: masters,
// compute copies, and, unless `weights_only`, moments and StepState. Plans
// without moments (no training) take the weights only. Holds less than a
// MiB, and pages of one piece at a time, 4 MiB of them at most. DataLoss: the
// checkpoint is damaged; FailedPrecondition: it is of another model or
// optimizer; InvalidArgument: a pattern is wrong or matches nothing.
absl::StatusOr<CheckpointManifest> LoadCheckpoint(
    const std::string& folder, const CheckpointRank& rank,
    const LoadOptions& options = {});

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
