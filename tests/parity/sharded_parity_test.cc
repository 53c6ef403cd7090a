// Worlds of 1 to 4 ranks give the numbers of one rank: odd sizes, empty
// trailing shards, dropout, accumulation.
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/config/text_config.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"
#include "tests/harness/training_run.h"

namespace shardgraph {
namespace {

TrainConfig Config(const std::string& model, int64_t micro_batch_size,
                   const std::vector<std::string>& overrides = {}) {
  TrainConfig config;
  const std::string text = "model { " + model + R"( }
    optimizer { kind: SGD learning_rate: 0.1 weight_decay: 0 max_gradient_norm: 0 }
    schedule { kind: CONSTANT }
    precision { compute: FP32 }
    data { batch_size: 12 sequence_length: 16 }
    run { steps: 20 seed: 7 }
  )";
  SG_CHECK_OK(ParseTextConfig(text, "test", &config));
  config.mutable_data()->set_micro_batch_size(micro_batch_size);
  for (const std::string& assignment : overrides)
    SG_CHECK_OK(ApplyOverride(assignment, &config));
  return config;
}

constexpr char kGpt2[] =
    R"(gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 5 n_head: 3 resid_pdrop: 0.1
                                   embd_pdrop: 0.1 attn_pdrop: 0.1
                                   initializer_range: 0.15 })";
constexpr char kLlama[] =
    R"(llama { vocab_size: 131 hidden_size: 36 intermediate_size: 50 num_hidden_layers: 5
                                     num_attention_heads: 6 num_key_value_heads: 2 max_position_embeddings: 16
                                     attention_dropout: 0.1 initializer_range: 0.15 })";

void ExpectSame(const TrainingRunResult& run, const TrainingRunResult& one) {
  ASSERT_EQ(run.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i)
    EXPECT_NEAR(run.losses[i], one.losses[i], 1e-5) << "step " << i;
  for (const auto& [name, weights] : one.weights) {
    std::vector<float> update = weights, update_of_run = run.weights.at(name);
    for (size_t i = 0; i < update.size(); ++i) {
      update[i] -= one.initial.at(name)[i];
      update_of_run[i] -= run.initial.at(name)[i];
    }
    EXPECT_EQ(run.initial.at(name), one.initial.at(name)) << name;
    EXPECT_LE(RelativeDifference(update_of_run, update), 1e-4) << name;
  }
}

class ShardedParity : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedParity, WorldsAndAccumulationGiveTheNumbersOfOneRank) {
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one =
      RunTraining(Config(GetParam(), 12), options);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_LT(one->losses.back(), one->losses.front());
  for (int world : {1, 2, 3, 4}) {
    for (int accumulation : {1, 3}) {
      options.world_size = world;
      const absl::StatusOr<TrainingRunResult> run =
          RunTraining(Config(GetParam(), 12 / world / accumulation), options);
      ASSERT_TRUE(run.ok()) << run.status();
      SCOPED_TRACE("world " + std::to_string(world) + ", accumulation " +
                   std::to_string(accumulation));
      ExpectSame(*run, *one);
    }
  }
}

// What a batch of 12 lacks is filled with masked sequences: parts of batches of
// some ranks, and all that the last ranks of the last micro-batch get.
TEST_P(ShardedParity, BatchesThatDoNotDivideGiveTheNumbersOfOneRank) {
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one =
      RunTraining(Config(GetParam(), 12), options);
  ASSERT_TRUE(one.ok()) << one.status();
  for (const auto& [world, micro] : {std::pair{1, 5}, {2, 5}, {3, 7}, {4, 5}}) {
    options.world_size = world;
    const absl::StatusOr<TrainingRunResult> run =
        RunTraining(Config(GetParam(), micro), options);
    ASSERT_TRUE(run.ok()) << run.status();
    SCOPED_TRACE("world " + std::to_string(world) + ", " +
                 std::to_string(micro) + " sequences each");
    ExpectSame(*run, *one);
  }
}

TEST_P(ShardedParity, RecomputeReshardAndWrapPolicyChangeNothing) {
  TrainingRunOptions options;
  options.world_size = 2;
  const absl::StatusOr<TrainingRunResult> plain =
      RunTraining(Config(GetParam(), 6), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::vector<std::vector<std::string>> choices = {
      {"shard.recompute=FULL"},
      {"shard.reshard_after_forward=false"},
      {"shard.prefetch=0"},
      {"shard.prefetch=3"},
      {"shard.recompute=SELECTIVE", "shard.recompute_ops=gelu,swiglu"},
  };
  for (const std::vector<std::string>& choice : choices) {
    const absl::StatusOr<TrainingRunResult> run =
        RunTraining(Config(GetParam(), 6, choice), options);
    ASSERT_TRUE(run.ok()) << choice[0] << ": " << run.status();
    EXPECT_EQ(run->losses, plain->losses) << choice[0];
    EXPECT_EQ(run->weights, plain->weights) << choice[0];
  }
  const absl::StatusOr<TrainingRunResult> wrapped = RunTraining(
      Config(GetParam(), 6,
             {"shard.wrap_policy=SIZE_BASED", "shard.min_num_params=3000"}),
      options);
  ASSERT_TRUE(wrapped.ok()) << wrapped.status();
  ExpectSame(*wrapped, *plain);
}

TEST_P(ShardedParity, RunsThreadsLanesAndCaptureAreBitwiseEqual) {
  TrainingRunOptions options;
  options.world_size = 3;
  const absl::StatusOr<TrainingRunResult> first =
      RunTraining(Config(GetParam(), 2), options);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto expect_equal = [&](const absl::StatusOr<TrainingRunResult>& run) {
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->losses, first->losses);
    EXPECT_EQ(run->weights, first->weights);
  };
  expect_equal(RunTraining(Config(GetParam(), 2), options));
  expect_equal(
      RunTraining(Config(GetParam(), 2, {"run.capture=false"}), options));
  options.threads = 2;
  expect_equal(RunTraining(Config(GetParam(), 2), options));
  options.threads = 1;
  for (int lanes : {1, 4}) {
    options.target.set_lanes(lanes);
    options.target.set_buffer_alignment(256);
    options.target.set_window_alignment(4096);
    expect_equal(RunTraining(Config(GetParam(), 2), options));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShardedParity,
                         ::testing::Values(kGpt2, kLlama),
                         [](const auto& info) {
                           return info.index == 0 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace shardgraph
