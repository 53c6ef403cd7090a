// TestWorld: the ranks of a run, with shards on the host and nothing that could
// run: for tests of what fills and reads shards.
#ifndef FSDP_CHECKPOINT_TEST_WORLD_H_
#define FSDP_CHECKPOINT_TEST_WORLD_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/train/shard_writer.h"
#include "graph/executor.h"
#include "kernels/step_state.h"

namespace shardgraph {

// Buffers on the host.
class HostExecutor : public Executor {
 public:
  absl::Status Enqueue(PhaseId) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::Status RunNodes(PhaseId, absl::FunctionRef<void(NodeId)>) override {
    return absl::UnimplementedError("no nodes");
  }
  absl::Status Write(ValueId, const void*, int64_t) override {
    return absl::UnimplementedError("no values");
  }
  absl::Status Read(ValueId, void*, int64_t) override {
    return absl::UnimplementedError("no values");
  }
  absl::Status WriteBuffer(BufferId buffer, int64_t offset, const void* host,
                           int64_t bytes) override {
    if (offset + bytes > static_cast<int64_t>(buffers[buffer].size()))
      return absl::OutOfRangeError("write");
    std::memcpy(buffers[buffer].data() + offset, host, bytes);
    return absl::OkStatus();
  }
  absl::Status ReadBuffer(BufferId buffer, int64_t offset, void* host,
                          int64_t bytes) override {
    if (offset + bytes > static_cast<int64_t>(buffers[buffer].size()))
      return absl::OutOfRangeError("read");
    std::memcpy(host, buffers[buffer].data() + offset, bytes);
    return absl::OkStatus();
  }
  const char* View(BufferId buffer, int64_t offset, int64_t) override {
    return in_place ? buffers[buffer].data() + offset : nullptr;
  }
  void* arena() const override { return nullptr; }
  int64_t arena_bytes() const override { return 0; }
  std::string Progress() const override { return ""; }
  int64_t Advance() const override { return 0; }
  void Abort(const absl::Status&) override {}

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

  TestWorld(int shards, int replicas, TestUse use, TrainConfig with)
      : config(std::move(with)), executors(shards * replicas) {
    plan = std::make_unique<TrainingPlan>();
    plan->model = *MakeModel(config.model());
    plan->layout = *MakeLayout(*plan->model, config.shard(), shards);
    plan->groups = {shards, replicas};
    plan->plan.hash = "77";
    std::vector<int64_t> bytes;
    const auto add = [&](int64_t n) {
      bytes.push_back(n);
      plan->plan.graph.buffers.emplace_back().bytes = n;
      return static_cast<BufferId>(bytes.size() - 1);
    };
    plan->state = add(sizeof(StepState));
    for (const ShardUnit& unit : plan->layout.units()) {
      const int64_t n = unit.flat.shard_numel;
      UnitBuffers buffers;
      buffers.compute = add(n * 2);
      if (use != TestUse::kGenerate) {
        buffers.master = add(n * 4);
        buffers.exp_avg = add(n * 4);
        if (use == TestUse::kTrain) buffers.exp_avg_sq = add(n * 4);
      }
      plan->units.push_back(buffers);
    }
    if (config.checkpoint().asynchronous())
      plan->snapshot_bytes = plan->SnapshotBytes();
    for (HostExecutor& executor : executors) {
      for (int64_t n : bytes) executor.buffers.emplace_back(n, '\x5a');
      const StepState state;
      std::memcpy(executor.buffers[plan->state].data(), &state, sizeof(state));
    }
  }

  CheckpointRank Rank(int rank) {
    CheckpointRank result;
    result.config = &config;
    result.plan = plan.get();
    result.executor = &executors[rank];
    result.rank = rank;
    result.world_size = static_cast<int>(executors.size());
    return result;
  }
  ShardWriter Shards(int rank) {
    return ShardWriter(*plan, rank % plan->groups.shard, executors[rank]);
  }
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_TEST_WORLD_H_
