// Snapshot: a copy in host memory of what a checkpoint saves of a rank, so that
// training can go on while it is written. It is laid out as the files are and
// summed, so that writing it is left to the disk.
#ifndef FSDP_CHECKPOINT_SNAPSHOT_H_
#define FSDP_CHECKPOINT_SNAPSHOT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "fsdp/checkpoint/shard_files.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "kernels/step_state.h"

namespace shardgraph {

// One thread takes it, one reads it, not at the same time.
class Snapshot {
 public:
  // Takes memory once: no more than plan.snapshot_bytes. `plan` outlives it.
  Snapshot(const TrainingPlan& plan, int shard);

  // Copies the rank's values, at the boundary of a step.
  absl::Status Take(BufferReader& executor);

  const ShardFiles& files() const { return files_; }
  // Of file `i`: its data, on a page; the sums of its pieces.
  absl::string_view Data(size_t i) const;
  const std::vector<ShardFiles::Sums>& SumsOf(size_t i) const {
    return sums_[i];
  }
  const StepState& state() const { return state_; }

 private:
  struct Free {
    void operator()(char* memory) const;
  };

  const ShardFiles files_;
  const BufferId state_buffer_;
  std::vector<int64_t> begins_;                      // of files, in memory_
  std::vector<std::vector<ShardFiles::Sums>> sums_;  // by file and piece
  StepState state_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_SNAPSHOT_H_
