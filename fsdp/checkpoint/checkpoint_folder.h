// The folder of a run's checkpoints on disk: publishing a finished one, keeping
// some, clearing what interrupted saves have left.
//
// A checkpoint is written as step_0000100.tmp, its manifest last, and renamed.
// What is to be removed is renamed to .old first, so that nothing half removed
// looks like a checkpoint. One process does all this, rank 0 of a job, and one
// thread at a time.
#ifndef FSDP_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define FSDP_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"

namespace shardgraph {

// FOLDER/step_0000100.tmp.
std::string TemporaryCheckpoint(const std::string& folder, int64_t step);

// Errors are Unavailable and name the path and the reason, here and below.
absl::Status MakeFolder(const std::string& path);
absl::Status RemoveAll(const std::string& path);

// Bytes that may still be written to the file system of `path`, a folder.
absl::StatusOr<int64_t> FreeBytes(const std::string& path);

// Puts the finished checkpoint of `step` under its name, in place of one that
// was there.
absl::Status PublishCheckpoint(const std::string& folder, int64_t step);

// Removes all files of a checkpoint's folder that its manifest does not list:
// those of an interrupted save of another world size.
absl::Status RemoveUnlisted(const std::string& path,
                            const CheckpointManifest& manifest);

// Removes checkpoints beyond the newest `keep_last` up to `step` (0: none),
// but for those of multiples of `keep_every` (0: none).
absl::Status PruneCheckpoints(const std::string& folder, int64_t step,
                              int64_t keep_last, int64_t keep_every);

// Before any save: removes what interrupted saves and removals have left, but
// publishes a checkpoint that was complete and not renamed yet. Returns a line
// for each. Whatever cannot be done is left as it is.
std::vector<std::string> ClearInterruptedSaves(const std::string& folder);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_CHECKPOINT_FOLDER_H_
