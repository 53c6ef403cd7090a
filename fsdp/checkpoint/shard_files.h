// ShardFiles: the files that a rank writes for a checkpoint, the same each
// time: which values of its shards stand where in them.
//
// A rank holds ranges of parameters and of their moments; a range is one box of
// its tensor or several back to back (boxes.h). The first file has the first
// box of each range, the second one the second of those that have two, and so
// on. A header is filled up with spaces to whole pages: so the data are on
// pages of the file, and can go to the disk from memory as they are.
#ifndef FSDP_CHECKPOINT_SHARD_FILES_H_
#define FSDP_CHECKPOINT_SHARD_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/train/shard_writer.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "proto/checkpoint.pb.h"

namespace shardgraph {

class ShardFiles {
 public:
  // A box of a range, FP32, and its place in the manifest.
  struct Piece {
    HeldRange range;
    ShardKind kind = ShardKind::kMaster;
    int64_t begin = 0;  // elements of the range
    int64_t elements = 0;
    int tensor = 0;
    int number = 0;  // of the tensor's pieces
  };
  struct File {
    std::string name;
    SafetensorsHeader header;
    std::vector<Piece> pieces;  // as header.entries
    int64_t data_bytes = 0;
  };
  // CRC-32C of each chunk of a piece.
  using Sums = std::vector<uint32_t>;

  // Of rank `shard` of a shard group. `plan` outlives this.
  ShardFiles(const TrainingPlan& plan, int shard);

  const std::vector<File>& files() const { return files_; }
  int64_t data_bytes() const { return data_bytes_; }
  // The rank's part of the manifest, without sums.
  const CheckpointManifest& part() const { return part_; }

  // The sums of a piece, whose values go to `to`, on 4, unless that is null,
  // and block by block to `take`.
  absl::StatusOr<Sums> Read(
      const Piece& piece, BufferReader& source, char* to,
      absl::FunctionRef<absl::Status(absl::string_view block)> take) const;

 private:
  const TrainingPlan& plan_;
  const int shard_;
  std::vector<File> files_;
  int64_t data_bytes_ = 0;
  CheckpointManifest part_;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_SHARD_FILES_H_
