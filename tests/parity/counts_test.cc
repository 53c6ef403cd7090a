// What a run sends is what its plan says, to the byte, with every strategy; and
// what is held out is evaluated once, however many ranks share it.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/config/train_config.h"
#include "fsdp/train/trainer.h"
#include "graph/step_plan.h"
#include "gtest/gtest.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/loopback.h"
#include "kernels/status_macros.h"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

// Bytes that a rank has moved, by op; each rank has its own. An all-gather of n
// pieces moves n - 1 of them, a reduce-scatter and an all-to-all likewise; an
// all-reduce does both.
using Counts = std::map<std::string, int64_t>;

class CountingCommunicator : public Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> inner, Counts* counts)
      : inner_(std::move(inner)), counts_(counts) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::Status AllGather(const void* shard, void* full, int64_t count,
                         DType dtype, Lane& lane) override {
    Add("all_gather", count * (size() - 1), dtype);
    return inner_->AllGather(shard, full, count, dtype, lane);
  }
  absl::Status ReduceScatter(const void* full, void* shard, int64_t count,
                             DType dtype, Lane& lane) override {
    Add("reduce_scatter", count * (size() - 1), dtype);
    return inner_->ReduceScatter(full, shard, count, dtype, lane);
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                         Lane& lane) override {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      (*counts_)["all_reduce"] +=
          2 * count * SizeOf(dtype) * (size() - 1) / size();
    }
    return inner_->AllReduce(data, count, dtype, op, lane);
  }
  absl::Status AllToAll(const void* send, void* receive, int64_t count,
                        DType dtype, Lane& lane) override {
    Add("all_to_all", count * (size() - 1), dtype);
    return inner_->AllToAll(send, receive, count, dtype, lane);
  }
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         Lane& lane) override {
    return inner_->Broadcast(data, count, dtype, root, lane);
  }
  absl::Status Barrier(Lane& lane) override { return inner_->Barrier(lane); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

  // Of the counts of every rank: lanes are threads.
  static std::mutex mutex;

 private:
  void Add(const char* op, int64_t elements, DType dtype) {
    const std::lock_guard<std::mutex> lock(mutex);
    (*counts_)[op] += elements * SizeOf(dtype);
  }

  std::unique_ptr<Communicator> inner_;
  Counts* counts_;
};

std::mutex CountingCommunicator::mutex;

class CountingFactory : public CommunicatorFactory {
 public:
  CountingFactory(std::unique_ptr<CommunicatorFactory> inner, Counts* counts)
      : inner_(std::move(inner)), counts_(counts) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    SG_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> communicator,
                        inner_->Create(group, ranks, channel));
    return std::unique_ptr<Communicator>(
        new CountingCommunicator(std::move(communicator), counts_));
  }
  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override {
    return inner_->AllocateWindow(bytes);
  }

 private:
  std::unique_ptr<CommunicatorFactory> inner_;
  Counts* counts_;
};

void AddPlanned(const StepPlan& plan, const char* phase, int64_t times,
                Counts* counts) {
  const PhaseId id = plan.graph.FindPhase(phase);
  if (id == kNone) return;
  const CommunicationVolume volume = VolumeOf(plan, id);
  for (const auto& [op, bytes] :
       {std::pair("all_gather", volume.all_gather_bytes),
        std::pair("reduce_scatter", volume.reduce_scatter_bytes),
        std::pair("all_reduce", volume.all_reduce_bytes),
        std::pair("all_to_all", volume.all_to_all_bytes)}) {
    if (bytes != 0) (*counts)[op] += times * bytes;
  }
}

// Each step, the first and a replayed one, of every rank. In a world of four
// each strategy is tried in one way.
TEST(Communication, IsWhatThePlanSays) {
  constexpr int kMicroBatches = 3;
  const std::vector<std::vector<std::string>> strategies = {
      {"shard.strategy=FULL_SHARD"},
      {"shard.strategy=FULL_SHARD", "shard.reshard_after_forward=false"},
      {"shard.strategy=FULL_SHARD", "shard.recompute=FULL"},
      {"shard.strategy=SHARD_GRAD_OP"},
      {"shard.strategy=ZERO1"},
      {"shard.strategy=NO_SHARD"},
      {"shard.strategy=HYBRID", "shard.shard_group_size=2"},
      {"shard.strategy=FULL_SHARD", "shard.reshard_group_size=2"},
  };
  int turn = 0;
  for (const int world : {2, 4}) {
    for (const std::vector<std::string>& strategy : strategies) {
      int choice = 0;
      ++turn;
      for (const std::vector<std::string>& way :
           {std::vector<std::string>{},
            std::vector<std::string>{"precision.reduce=BF16",
                                     "precision.compute=BF16"},
            std::vector<std::string>{"shard.reduce_once=true"}}) {
        if (choice++ != turn % 3 && world == 4) continue;
        std::vector<std::string> overrides = strategy;
        overrides.insert(overrides.end(), way.begin(), way.end());
        SCOPED_TRACE(
            absl::StrCat("world ", world, " ", absl::StrJoin(overrides, " ")));
        overrides.push_back("run.steps=2");
        std::vector<Counts> counts(world), before(world);
        TrainingRunOptions options;
        options.world_size = world;
        options.world = [&](int size) {
          auto factories = MakeLoopbackWorld(size);
          for (int rank = 0; rank < size; ++rank) {
            factories[rank] = std::make_unique<CountingFactory>(
                std::move(factories[rank]), &counts[rank]);
          }
          return factories;
        };
        options.after_step = [&](int rank, int64_t step, Executor&,
                                 const TrainingPlan& plan) {
          const std::lock_guard<std::mutex> lock(CountingCommunicator::mutex);
          Counts planned = before[rank];
          if (step == 0) AddPlanned(plan.plan, kGatherPhase, 1, &planned);
          const bool last = plan.plan.graph.FindPhase(kLastMicroPhase) != kNone;
          AddPlanned(plan.plan, "micro", kMicroBatches - last, &planned);
          AddPlanned(plan.plan, kLastMicroPhase, 1, &planned);
          AddPlanned(plan.plan, "update", 1, &planned);
          EXPECT_EQ(counts[rank], planned) << "step " << step;
          EXPECT_FALSE(planned.empty());
          before[rank] = counts[rank];
        };
        const absl::StatusOr<TrainingRunResult> run = RunTraining(
            ParityConfig(kParityGpt2, 12 / world / kMicroBatches, overrides),
            options);
        ASSERT_TRUE(run.ok()) << run.status();
      }
    }
  }
}

// Any number of sequences, on any number of ranks: the tokens and the loss of
// one rank, and the same number of runs everywhere.
TEST(Evaluation, CountsEachSequenceOnce) {
  constexpr int64_t kLength = 16;
  std::map<int64_t, double> losses;  // by sequences, of one rank
  for (const int world : {1, 2, 3, 4}) {
    TrainConfig config = ParityConfig(kParityGpt2, 2, {"run.steps=1"});
    std::vector<std::map<int64_t, int64_t>> runs(world);  // by sequences
    TrainingRunOptions run;
    run.world_size = world;
    std::mutex mutex;
    TrainConfig resolved = config;
    ResolveTrainConfig(kLength, world, &resolved);
    run.after_step = [&](int rank, int64_t, Executor& executor,
                         const TrainingPlan& plan) {
      TrainerOptions options;
      options.config = &resolved;
      options.plan = &plan;
      options.executor = &executor;
      options.rank = rank;
      options.world_size = world;
      options.validation = [&](int64_t sequences, int64_t micro, Batch* batch) {
        {
          const std::lock_guard<std::mutex> lock(mutex);
          ++runs[rank][sequences];
        }
        batch->tokens.assign(2 * kLength, 0);
        batch->targets.assign(2 * kLength, kIgnoredTarget);
        batch->sequence_ids.assign(2, 0);
        for (int64_t b = 0; b < 2; ++b) {
          const int64_t sequence = (micro * world + rank) * 2 + b;
          if (sequence >= sequences) continue;
          for (int64_t t = 0; t < kLength; ++t) {
            batch->tokens[b * kLength + t] =
                static_cast<int32_t>((sequence * 31 + t * 7) % 131);
            batch->targets[b * kLength + t] =
                static_cast<int32_t>((sequence * 31 + t * 7 + 7) % 131);
          }
        }
        return absl::OkStatus();
      };
      Trainer trainer(options);
      for (int64_t sequences = 1; sequences <= 9; ++sequences) {
        const absl::StatusOr<EvaluationMetrics> metrics =
            trainer.Evaluate(1, sequences);
        SG_CHECK_OK(metrics);
        EXPECT_EQ(metrics->tokens, sequences * kLength);
        const std::lock_guard<std::mutex> lock(mutex);
        if (world == 1) losses[sequences] = metrics->loss;
        EXPECT_NEAR(metrics->loss, losses[sequences], 1e-5);
      }
    };
    const absl::StatusOr<TrainingRunResult> result = RunTraining(config, run);
    ASSERT_TRUE(result.ok()) << result.status();
    for (const auto& of_rank : runs) EXPECT_EQ(of_rank, runs[0]);
    EXPECT_EQ(runs[0][9], (9 + 2 * world - 1) / (2 * world));
  }
}

}  // namespace
}  // namespace shardgraph
