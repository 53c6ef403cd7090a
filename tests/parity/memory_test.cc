// Memory of a rank: the arena is what the plan says and nothing else is
// allocated in a steady step; state is shared out evenly.
#include <atomic>
#include <barrier>
#include <cstdint>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "fsdp/shard/flat_parameter.h"
#include "graph/model/module.h"
#include "gtest/gtest.h"
#include "kernels/collective/test_ranks.h"
#include "kernels/status_macros.h"
#include "kernels/testing/allocations.h"
#include "tests/harness/training_run.h"

namespace shardgraph {
namespace {

constexpr int kSteps = 5;

TrainConfig Config(const std::vector<std::string>& overrides) {
  TrainConfig config;
  SG_CHECK_OK(ParseTextConfig(R"(
    model { gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 3
                   n_head: 3 resid_pdrop: 0.1 embd_pdrop: 0.1
                   attn_pdrop: 0.1 } }
    schedule { kind: CONSTANT }
    data { batch_size: 12 sequence_length: 16 micro_batch_size: 2 }
  )",
                              "test", &config));
  config.mutable_run()->set_steps(kSteps);
  for (const std::string& assignment : overrides)
    SG_CHECK_OK(ApplyOverride(assignment, &config));
  return config;
}

int64_t BytesOf(const MemoryPlan& memory, MemoryKind kind) {
  return memory.bytes_by_kind[static_cast<int>(kind)];
}

TEST(MemoryTest, TheArenaIsWhatThePlanSays) {
  const std::vector<std::pair<int, std::vector<std::string>>> meshes = {
      {1, {}},
      {2, {}},
      {4, {}},
      {2, {"shard.strategy=SHARD_GRAD_OP"}},
      {3, {"shard.strategy=ZERO1", "shard.reduce_once=true"}},
      {2, {"shard.strategy=NO_SHARD", "precision.reduce=BF16"}},
      {4, {"shard.strategy=HYBRID", "shard.shard_group_size=2"}},
      {4, {"shard.reshard_group_size=2"}},
      {2, {"optimizer.frozen=.*mlp.*"}},
  };
  for (const char* compute : {"FP32", "BF16"}) {
    for (const auto& [world, overrides] : meshes) {
      SCOPED_TRACE(absl::StrCat(compute, ", world ", world, " ",
                                absl::StrJoin(overrides, " ")));
      TrainingRunOptions options;
      options.world_size = world;
      std::mutex mutex;
      int64_t planned = 0;
      options.after_step = [&](int rank, int64_t step, Executor& executor,
                               const TrainingPlan& plan) {
        if (step > 0) return;
        const std::lock_guard<std::mutex> lock(mutex);
        const MemoryPlan& memory = plan.plan.memory;
        planned = memory.arena_bytes;
        EXPECT_EQ(executor.arena_bytes(), planned);
        EXPECT_EQ(memory.persistent_bytes + memory.transient_bytes, planned);
        EXPECT_TRUE(absl::StrContains(PrintPlan(plan.plan),
                                      absl::StrCat(" arena=", planned, " ")));
        // Each buffer lies inside.
        for (size_t i = 0; i < memory.offsets.size(); ++i) {
          EXPECT_LE(memory.offsets[i] + plan.plan.graph.buffers[i].bytes,
                    planned);
        }
      };
      std::vector<std::string> all = overrides;
      all.push_back(absl::StrCat("precision.compute=", compute));
      all.push_back("run.steps=1");
      const auto run = RunTraining(Config(all), options);
      ASSERT_TRUE(run.ok()) << run.status();
      EXPECT_GT(planned, 0);
      EXPECT_EQ(run->device_bytes, std::vector<int64_t>(world, planned));
    }
  }
}

// A limit in which FULL_SHARD with recomputation trains what NO_SHARD without
// cannot hold.
TEST(MemoryTest, ShardingAndRecomputationTrainWhatWouldNotFit) {
  const std::vector<std::string> wide = {"model.gpt2.n_embd=96", "run.steps=2"};
  const auto bytes = [&](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = wide;
    all.insert(all.end(), overrides.begin(), overrides.end());
    TrainingRunOptions options;
    options.world_size = 4;
    const auto run = RunTraining(Config(all), options);
    SG_CHECK_OK(run);
    return run->device_bytes[0];
  };
  const int64_t limit = 3 << 20;
  EXPECT_LE(bytes({"shard.recompute=FULL"}), limit);
  EXPECT_GT(bytes({"shard.strategy=NO_SHARD"}), limit);
}

// A rank holds 1 / world of masters and moments, but for padding.
TEST(MemoryTest, StateIsSharedOut) {
  for (int world = 1; world <= 4; ++world) {
    TrainingRunOptions options;
    options.world_size = world;
    options.after_step = [&](int rank, int64_t step, Executor& executor,
                             const TrainingPlan& plan) {
      if (rank > 0) return;
      int64_t shards = 0, padding = 0;
      for (const ShardUnit& unit : plan.layout.units()) {
        shards += unit.flat.shard_numel;
        padding += unit.flat.padded_numel - unit.flat.numel;
      }
      EXPECT_EQ(shards * world, plan.model->numel() + padding);
      const MemoryPlan& memory = plan.plan.memory;
      EXPECT_EQ(BytesOf(memory, MemoryKind::kMasterParameter), 4 * shards);
      EXPECT_EQ(BytesOf(memory, MemoryKind::kComputeParameter), 2 * shards);
      EXPECT_EQ(BytesOf(memory, MemoryKind::kOptimizerState), 8 * shards);
      EXPECT_EQ(BytesOf(memory, MemoryKind::kGradientShard), 4 * shards);
    };
    const auto run = RunTraining(Config({"run.steps=1"}), options);
    ASSERT_TRUE(run.ok()) << run.status();
  }
}

// Frozen parameters, and those below adapters, have neither gradient nor
// moments, in BF16 no master either, and nothing of them is reduced, neither in
// the plan nor in the arena that a run allocates; and they keep their bits.
TEST(MemoryTest, WhatIsNotTrainedHasNeitherGradientNorState) {
  struct Case {
    int world;
    std::vector<std::string> overrides;
  };
  const std::vector<Case> meshes = {
      {1, {}},
      {3, {"shard.strategy=FULL_SHARD"}},
      {2, {"shard.strategy=SHARD_GRAD_OP", "precision.reduce=BF16"}},
      {2, {"shard.strategy=ZERO1", "shard.reduce_once=true"}},
      {2, {"shard.strategy=NO_SHARD"}},
      {4, {"shard.strategy=HYBRID", "shard.shard_group_size=2"}},
  };
  const std::vector<std::pair<std::string, std::vector<std::string>>> kinds = {
      {".*(wte|wpe|mlp).*", {"optimizer.frozen=.*(wte|wpe|mlp).*"}},
      {"", {"model.lora.modules=.*(c_attn|c_fc)", "model.lora.rank=3"}},
  };
  for (const auto& [pattern, kind] : kinds) {
    const bool lora = absl::StrContains(kind[0], "lora");
    const auto still = [&, &frozen = pattern](const std::string& name) {
      return lora ? !absl::StrContains(name, "lora_")
                  : std::regex_match(name, std::regex(frozen));
    };
    for (const char* compute : {"FP32", "BF16"}) {
      for (const auto& [world, overrides] : meshes) {
        std::vector<std::string> all = kind;
        all.insert(all.end(), overrides.begin(), overrides.end());
        const bool fp32 = std::string(compute) == "FP32";
        if (fp32 && world % 2 == 0) continue;
        all.push_back(absl::StrCat("precision.compute=", compute));
        SCOPED_TRACE(
            absl::StrCat("world ", world, " ", absl::StrJoin(all, " ")));
        all.push_back("run.steps=2");
        TrainingRunOptions options;
        options.world_size = world;
        int64_t planned = 0;
        options.after_step = [&, world = world](int rank, int64_t,
                                                Executor& executor,
                                                const TrainingPlan& plan) {
          if (rank > 0) return;
          int64_t trained = 0, frozen = 0, trained_numel = 0;
          std::set<std::string> reduced, frozen_units;
          for (size_t u = 0; u < plan.units.size(); ++u) {
            const ShardUnit& unit = plan.layout.units()[u];
            const UnitBuffers& buffers = plan.units[u];
            (unit.trainable ? trained : frozen) += unit.flat.shard_numel;
            for (const FlatMember& member : unit.flat.members)
              EXPECT_EQ(unit.trainable, !still(member.parameter->name));
            for (const BufferId buffer :
                 {buffers.gradient, buffers.accumulated, buffers.exp_avg,
                  buffers.exp_avg_sq}) {
              EXPECT_EQ(buffer != kNone, unit.trainable) << unit.name;
            }
            EXPECT_EQ(buffers.master != kNone, unit.trainable || fp32);
            if (unit.trainable) trained_numel += unit.flat.padded_numel;
            if (!unit.trainable) frozen_units.insert(unit.name);
          }
          EXPECT_GT(trained, 0);
          EXPECT_GT(frozen, 0);
          const Graph& graph = plan.plan.graph;
          const MemoryPlan& memory = plan.plan.memory;
          EXPECT_EQ(BytesOf(memory, MemoryKind::kGradientShard), 4 * trained);
          EXPECT_EQ(BytesOf(memory, MemoryKind::kOptimizerState), 8 * trained);
          EXPECT_EQ(BytesOf(memory, MemoryKind::kMasterParameter),
                    4 * (trained + (fp32 ? frozen : 0)));
          // What is reduced, and the buffers that it goes through.
          for (const Node& node : graph.nodes) {
            if (node.lane == LaneKind::kReduce && node.unit != kNone)
              reduced.insert(graph.units[node.unit].name);
          }
          EXPECT_EQ(reduced.size(),
                    world == 1 ? 0u : plan.units.size() - frozen_units.size());
          for (const std::string& name : frozen_units)
            EXPECT_EQ(reduced.count(name), 0u) << name;
          int64_t whole = 0;
          for (const Buffer& buffer : graph.buffers) {
            if (buffer.kind == MemoryKind::kGradient &&
                buffer.lifetime == Lifetime::kStep)
              whole += buffer.bytes;
          }
          EXPECT_EQ(whole,
                    plan.groups.whole_parameters ? 4 * trained_numel : 0);
          planned = memory.arena_bytes;
          EXPECT_EQ(executor.arena_bytes(), planned);
        };
        const auto run = RunTraining(Config(all), options);
        ASSERT_TRUE(run.ok()) << run.status();
        EXPECT_EQ(run->device_bytes, std::vector<int64_t>(world, planned));
        for (const auto& [name, weights] : run->weights)
          EXPECT_EQ(weights == run->initial.at(name), still(name)) << name;
      }
    }
  }
}

TEST(MemoryTest, PaddingOfPresetsIsBelowAThousandth) {
  const std::string folder = "proto/configs";
  const std::vector<std::string> presets = PresetNames(folder);
  ASSERT_GE(presets.size(), 7u);
  for (const std::string& preset : presets) {
    const auto config = LoadTrainConfig(preset, folder, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const auto model = MakeModel(config->model());
    ASSERT_TRUE(model.ok()) << model.status();
    for (int world = 1; world <= 8; ++world) {
      const auto layout = MakeLayout(**model, config->shard(), world);
      ASSERT_TRUE(layout.ok()) << layout.status();
      int64_t padded = 0;
      for (const ShardUnit& unit : layout->units())
        padded += unit.flat.padded_numel;
      EXPECT_LT(padded - (*model)->numel(), 1e-3 * (*model)->numel())
          << preset << ", world " << world;
    }
  }
}

// Of the whole process, all ranks and lanes, from the second step on.
TEST(MemoryTest, StepsAfterTheFirstAllocateNothing) {
  for (const char* capture : {"true", "false"}) {
    for (const int world : {1, 3}) {
      for (const int lanes : {1, 4}) {
        for (const int micro_batch : {2, 12}) {  // several, and one only
          SCOPED_TRACE(absl::StrCat("capture ", capture, ", world ", world,
                                    ", lanes ", lanes, ", micro-batch ",
                                    micro_batch));
          TrainingRunOptions options;
          options.world_size = world;
          options.threads = 2;
          options.target.set_lanes(lanes);
          options.target.set_buffer_alignment(256);
          options.target.set_window_alignment(4096);
          std::vector<int64_t> allocations(kSteps);
          // All ranks stand still while one counts.
          std::barrier together(world);
          options.after_step = [&](int rank, int64_t step, Executor& executor,
                                   const TrainingPlan& plan) {
            together.arrive_and_wait();
            if (rank == 0) allocations[step] = NumAllocations();
            together.arrive_and_wait();
          };
          const auto run = RunTraining(
              Config({absl::StrCat("run.capture=", capture),
                      absl::StrCat("data.micro_batch_size=", micro_batch)}),
              options);
          ASSERT_TRUE(run.ok()) << run.status();
          EXPECT_GT(allocations[0], 0);
          for (int step = 1; step < kSteps; ++step) {
            EXPECT_EQ(allocations[step] - allocations[step - 1], 0)
                << "step " << step + 1;
          }
        }
      }
    }
  }
}

// On the threads of the lanes, ranks being processes: what a transport
// allocates is told apart.
TEST(MemoryTest, OfTheTransportsOnlyGlooAllocates) {
  for (const auto& [transport, collectives_allocate] :
       {std::pair{TestTransport::kSharedMemory, false},
        std::pair{TestTransport::kGloo, true}}) {
    const std::vector<RankResult> ranks = RunRanks(
        transport, 2, absl::Seconds(120),
        [](TestRank& rank) -> absl::StatusOr<std::string> {
          std::atomic<int64_t> steps{0}, in_collectives{0}, elsewhere{0};
          TrainingRunOptions options;
          options.after_step = [&](int, int64_t, Executor&,
                                   const TrainingPlan&) { ++steps; };
          // What a lane allocated since its node before.
          options.after_node = [&](const Graph& graph, NodeId node) {
            thread_local int64_t before = NumThreadAllocations();
            const int64_t now = NumThreadAllocations();
            if (steps > 0) {
              (graph.nodes[node].lane == LaneKind::kCompute ? elsewhere
                                                            : in_collectives) +=
                  now - before;
            }
            before = now;
          };
          SG_RETURN_IF_ERROR(
              RunTrainingRank(Config({}), options, rank.factory()).status());
          if (elsewhere > 0)
            return absl::InternalError(
                absl::StrCat(elsewhere.load(), " allocations"));
          return absl::StrCat(in_collectives.load());
        });
    for (const RankResult& rank : ranks) {
      ASSERT_TRUE(rank.status.ok()) << rank.status;
      EXPECT_EQ(rank.output != "0", collectives_allocate) << rank.output;
    }
    if (collectives_allocate)
      RecordProperty("allocations_of_gloo", ranks[0].output);
  }
}

}  // namespace
}  // namespace shardgraph
