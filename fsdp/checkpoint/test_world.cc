#include "fsdp/checkpoint/test_world.h"

#include <cstring>
#include <utility>

#include "kernels/step_state.h"

namespace shardgraph {

absl::Status HostExecutor::Enqueue(PhaseId) { return absl::OkStatus(); }

absl::Status HostExecutor::Synchronize() { return absl::OkStatus(); }

absl::Status HostExecutor::RunNodes(PhaseId, absl::FunctionRef<void(NodeId)>) {
  return absl::UnimplementedError("no nodes");
}

absl::Status HostExecutor::Write(ValueId, const void*, int64_t) {
  return absl::UnimplementedError("no values");
}

absl::Status HostExecutor::Read(ValueId, void*, int64_t) {
  return absl::UnimplementedError("no values");
}

absl::Status HostExecutor::WriteBuffer(BufferId buffer, int64_t offset,
                                       const void* host, int64_t bytes) {
  if (offset + bytes > static_cast<int64_t>(buffers[buffer].size()))
    return absl::OutOfRangeError("write");
  std::memcpy(buffers[buffer].data() + offset, host, bytes);
  return absl::OkStatus();
}

absl::Status HostExecutor::ReadBuffer(BufferId buffer, int64_t offset,
                                      void* host, int64_t bytes) {
  if (offset + bytes > static_cast<int64_t>(buffers[buffer].size()))
    return absl::OutOfRangeError("read");
  std::memcpy(host, buffers[buffer].data() + offset, bytes);
  return absl::OkStatus();
}

const char* HostExecutor::View(BufferId buffer, int64_t offset, int64_t) {
  return in_place ? buffers[buffer].data() + offset : nullptr;
}

void* HostExecutor::arena() const { return nullptr; }

int64_t HostExecutor::arena_bytes() const { return 0; }

std::string HostExecutor::Progress() const { return ""; }

int64_t HostExecutor::Advance() const { return 0; }

void HostExecutor::Abort(const absl::Status&) {}

TestWorld::TestWorld(int shards, int replicas, TestUse use, TrainConfig with)
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

TestWorld::~TestWorld() = default;

CheckpointRank TestWorld::Rank(int rank) {
  CheckpointRank result;
  result.config = &config;
  result.plan = plan.get();
  result.executor = &executors[rank];
  result.rank = rank;
  result.world_size = static_cast<int>(executors.size());
  return result;
}

ShardWriter TestWorld::Shards(int rank) {
  return ShardWriter(*plan, rank % plan->groups.shard, executors[rank]);
}

}  // namespace shardgraph
