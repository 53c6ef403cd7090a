#include "fsdp/train/shard_writer.h"

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/test_world.h"
#include "gtest/gtest.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

TrainConfig Config() {
  TrainConfig config;
  Gpt2Spec* model = config.mutable_model()->mutable_gpt2();
  model->set_vocab_size(131);
  model->set_n_positions(9);
  model->set_n_embd(36);
  model->set_n_head(3);
  model->set_n_layer(2);
  return config;
}

// Whole parameters from the shards of all ranks.
std::map<std::string, std::vector<float>> Whole(TestWorld& world) {
  std::map<std::string, std::vector<float>> whole;
  for (const Parameter* parameter : world.plan->model->parameters())
    whole[parameter->name].assign(parameter->numel(), NAN);
  for (size_t rank = 0; rank < world.executors.size(); ++rank) {
    ShardWriter shards = world.Shards(rank);
    for (const HeldRange& held : shards.Held()) {
      EXPECT_TRUE(
          shards
              .Read(held, 0,
                    absl::MakeSpan(
                        whole.at(held.parameter->name).data() + held.begin,
                        held.elements),
                    ShardKind::kMaster)
              .ok());
    }
  }
  return whole;
}

TEST(InitializeParametersTest, IsTheSameWhateverTheWorldSize) {
  std::map<std::string, std::vector<float>> one;
  for (int shards : {1, 2, 3, 7, 32}) {
    TestWorld world(shards, 1, TestUse::kTrain, Config());
    for (int rank = 0; rank < shards; ++rank) {
      ASSERT_TRUE(
          InitializeParameters(*world.plan, 5, rank, world.executors[rank])
              .ok());
    }
    const auto whole = Whole(world);
    if (shards > 1) {
      EXPECT_EQ(whole, one) << shards;
      continue;
    }
    one = whole;
    for (const Parameter* parameter : world.plan->model->parameters()) {
      const std::vector<float>& values = one.at(parameter->name);
      const RandomKey key = MakeRandomKey(5, HashName(parameter->name));
      double squares = 0;
      for (int64_t i = 0; i < parameter->numel(); ++i) {
        const float expected =
            parameter->init == Parameter::Init::kZeros ? 0
            : parameter->init == Parameter::Init::kOnes
                ? 1
                : static_cast<float>(parameter->std) * RandomNormal(key, i);
        ASSERT_EQ(values[i], expected) << parameter->name << " " << i;
        squares += values[i] * values[i];
      }
      if (parameter->init == Parameter::Init::kNormal) {
        EXPECT_NEAR(std::sqrt(squares / parameter->numel()) / parameter->std, 1,
                    4 / std::sqrt(2.0 * parameter->numel()))
            << parameter->name;
      }
    }
  }
  TestWorld other(1, 1, TestUse::kTrain, Config());
  ASSERT_TRUE(InitializeParameters(*other.plan, 6, 0, other.executors[0]).ok());
  EXPECT_NE(Whole(other).at("transformer.wte.weight"),
            one.at("transformer.wte.weight"));
}

TEST(ShardWriterTest, WritesTheComputeCopyAndLeavesPadding) {
  TestWorld world(3, 1, TestUse::kTrain, Config());
  for (int rank = 0; rank < 3; ++rank) {
    HostExecutor& executor = world.executors[rank];
    ASSERT_TRUE(InitializeParameters(*world.plan, 5, rank, executor).ok());
    std::map<int, std::vector<bool>> held_of_unit;
    for (size_t u = 0; u < world.plan->units.size(); ++u) {
      held_of_unit[u].resize(world.plan->layout.units()[u].flat.shard_numel);
    }
    for (const HeldRange& held : world.Shards(rank).Held()) {
      for (int64_t i = 0; i < held.elements; ++i)
        held_of_unit[held.unit][held.shard_begin + i] = true;
    }
    for (const auto& [unit, held] : held_of_unit) {
      const UnitBuffers& buffers = world.plan->units[unit];
      for (size_t i = 0; i < held.size(); ++i) {
        float master;
        BFloat16 compute;
        std::memcpy(&master, executor.buffers[buffers.master].data() + 4 * i,
                    4);
        std::memcpy(&compute, executor.buffers[buffers.compute].data() + 2 * i,
                    2);
        ASSERT_EQ(compute.bits,
                  held[i] ? BFloat16(master).bits : uint16_t{0x5a5a});
        // Moments are not touched.
        ASSERT_EQ(executor.buffers[buffers.exp_avg][4 * i], 0x5a);
      }
    }
  }
}

}  // namespace
}  // namespace shardgraph
