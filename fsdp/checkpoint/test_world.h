// TestWorld: the ranks of a run, with shards on the host and nothing that could
// run: for tests of what fills and reads shards.
#ifndef FSDP_CHECKPOINT_TEST_WORLD_H_
#define FSDP_CHECKPOINT_TEST_WORLD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/train/shard_writer.h"
#include "graph/executor.h"

namespace shardgraph {

// Buffers on the host.
class HostExecutor : public Executor {
 public:
  absl::Status Enqueue(PhaseId) override;
  absl::Status Synchronize() override;
  absl::Status RunNodes(PhaseId, absl::FunctionRef<void(NodeId)>) override;
  absl::Status Write(ValueId, const void*, int64_t) override;
  absl::Status Read(ValueId, void*, int64_t) override;
  absl::Status WriteBuffer(BufferId buffer, int64_t offset, const void* host,
                           int64_t bytes) override;
  absl::Status ReadBuffer(BufferId buffer, int64_t offset, void* host,
                          int64_t bytes) override;
  const char* View(BufferId buffer, int64_t offset, int64_t bytes) override;
  void* arena() const override;
  int64_t arena_bytes() const override;
  std::string Progress() const override;
  int64_t Advance() const override;
  void Abort(const absl::Status&) override;

  std::vector<std::vector<char>> buffers;
  bool in_place = false;  // whether View shows them
};

// What the plan keeps: AdamW's masters and moments, SGD's with momentum, or
// compute shards only.
enum class TestUse { kTrain, kMomentum, kGenerate };

// A run: the ranks' plans (alike) and shards. Only what checkpoints touch.
struct TestWorld {
  TrainConfig config;
  std::unique_ptr<TrainingPlan> plan;
  std::vector<HostExecutor> executors;

  TestWorld(int shards, int replicas, TestUse use, TrainConfig with);
  ~TestWorld();

  CheckpointRank Rank(int rank);
  ShardWriter Shards(int rank);
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_TEST_WORLD_H_
