// Manifests of checkpoints: reading, writing, checking, and finding the
// checkpoints of a folder.
//
// A folder of checkpoints holds one folder per checkpoint, step_0000100, with
// the file manifest.textproto, whose last line is a comment with the CRC-32C of
// what stands before it. A folder without manifest is no checkpoint: it was
// interrupted.
#ifndef FSDP_CHECKPOINT_MANIFEST_H_
#define FSDP_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/boxes.h"
#include "proto/checkpoint.pb.h"

namespace shardgraph {

inline constexpr int kManifestVersion = 2;
inline constexpr char kManifestName[] = "manifest.textproto";

// Replaces the file PATH with the message and its checksum.
absl::Status WriteManifest(const std::string& path,
                           const CheckpointManifest& manifest);

// Reads the file PATH. DataLoss naming it when it is missing, damaged or of a
// newer version.
absl::StatusOr<CheckpointManifest> ReadManifestFile(const std::string& path);

// Reads the manifest of the checkpoint `folder` and checks that its files are
// there with their sizes, that the pieces cover the tensors and that a folder
// named step_N is of step N. DataLoss names what is not so.
absl::StatusOr<CheckpointManifest> ReadCheckpointManifest(
    const std::string& folder);

// What ReadManifestFile does with the text of the file `path`.
absl::StatusOr<CheckpointManifest> ParseManifest(const std::string& path,
                                                 const std::string& text);

// Every element of every tensor is in one piece, by count; boxes lie inside.
absl::Status CheckPieces(const CheckpointManifest& manifest);

Box BoxOf(const CheckpointPiece& piece);

// "step_0000100".
std::string CheckpointName(int64_t step);

struct CheckpointFolder {
  int64_t step = 0;
  std::string path;
};

// Folders named step_N with a manifest, newest first. Empty when the folder
// does not exist.
std::vector<CheckpointFolder> ListCheckpoints(const std::string& folder);

// Folders named step_N without a manifest, newest first.
std::vector<std::string> ListIncomplete(const std::string& folder);

// The checkpoint that a user means by `path`: a checkpoint, or the newest one
// of a folder of checkpoints or of a run directory. NotFound says what was
// looked for.
absl::StatusOr<std::string> ResolveCheckpoint(const std::string& path);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_MANIFEST_H_
