// Snapshot: a copy in host memory of what a checkpoint saves of a rank, so that
// training can go on while it is written.
#ifndef FSDP_CHECKPOINT_SNAPSHOT_H_
#define FSDP_CHECKPOINT_SNAPSHOT_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"

namespace shardgraph {

// One thread takes it, one reads it, not at the same time.
class Snapshot final : public BufferReader {
 public:
  // Takes plan.snapshot_bytes of memory, once. `plan` outlives it.
  explicit Snapshot(const TrainingPlan& plan);

  // Copies the plan's saved buffers, at the boundary of a step.
  absl::Status Take(BufferReader& executor);

  absl::Status ReadBuffer(BufferId buffer, int64_t offset, void* host,
                          int64_t bytes) override;

 private:
  struct Place {
    int64_t begin = 0;
    int64_t bytes = 0;
  };
  struct Free {
    void operator()(char* memory) const;
  };

  std::map<BufferId, Place> places_;
  std::unique_ptr<char, Free> memory_;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_SNAPSHOT_H_
