// Worlds of 1 to 4 ranks give the numbers of one rank: odd sizes, empty
// trailing shards, dropout, accumulation.
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

// Enough where the same bits are expected, or only the batches differ.
constexpr char kFewSteps[] = "run.steps=5";

class ShardedParity : public ::testing::TestWithParam<const char*> {};

TEST_P(ShardedParity, WorldsAndAccumulationGiveTheNumbersOfOneRank) {
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one =
      RunTraining(ParityConfig(GetParam(), 12), options);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_LT(one->losses.back(), one->losses.front());
  for (int world : {1, 2, 3, 4}) {
    for (int accumulation : {1, 3}) {
      options.world_size = world;
      const absl::StatusOr<TrainingRunResult> run = RunTraining(
          ParityConfig(GetParam(), 12 / world / accumulation), options);
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
      RunTraining(ParityConfig(GetParam(), 12, {kFewSteps}), options);
  ASSERT_TRUE(one.ok()) << one.status();
  for (const auto& [world, micro] : {std::pair{1, 5}, {2, 5}, {3, 7}, {4, 5}}) {
    options.world_size = world;
    const absl::StatusOr<TrainingRunResult> run =
        RunTraining(ParityConfig(GetParam(), micro, {kFewSteps}), options);
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
      RunTraining(ParityConfig(GetParam(), 6, {kFewSteps}), options);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::vector<std::vector<std::string>> choices = {
      {"shard.recompute=FULL"},
      {"shard.reshard_after_forward=false"},
      {"shard.prefetch=0"},
      {"shard.prefetch=3"},
      {"shard.recompute=SELECTIVE", "shard.recompute_ops=gelu,swiglu"},
      {"shard.recompute=SELECTIVE", "shard.recompute_ops=feed_forward,norm"},
      {"shard.recompute=SELECTIVE",
       "shard.recompute_ops=attention,embedding,pointwise,random"},
  };
  for (std::vector<std::string> choice : choices) {
    choice.push_back(kFewSteps);
    const absl::StatusOr<TrainingRunResult> run =
        RunTraining(ParityConfig(GetParam(), 6, choice), options);
    ASSERT_TRUE(run.ok()) << choice[0] << ": " << run.status();
    EXPECT_EQ(run->losses, plain->losses) << choice[0];
    EXPECT_EQ(run->weights, plain->weights) << choice[0];
  }
  const absl::StatusOr<TrainingRunResult> wrapped =
      RunTraining(ParityConfig(GetParam(), 6,
                               {"shard.wrap_policy=SIZE_BASED",
                                "shard.min_num_params=3000", kFewSteps}),
                  options);
  ASSERT_TRUE(wrapped.ok()) << wrapped.status();
  ExpectSame(*wrapped, *plain);
}

TEST_P(ShardedParity, RunsThreadsLanesAndCaptureAreBitwiseEqual) {
  TrainingRunOptions options;
  options.world_size = 3;
  const absl::StatusOr<TrainingRunResult> first =
      RunTraining(ParityConfig(GetParam(), 2, {kFewSteps}), options);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto expect_equal = [&](const absl::StatusOr<TrainingRunResult>& run) {
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->losses, first->losses);
    EXPECT_EQ(run->weights, first->weights);
  };
  expect_equal(RunTraining(ParityConfig(GetParam(), 2, {kFewSteps}), options));
  expect_equal(RunTraining(
      ParityConfig(GetParam(), 2, {kFewSteps, "run.capture=false"}), options));
  options.threads = 2;
  expect_equal(RunTraining(ParityConfig(GetParam(), 2, {kFewSteps}), options));
  options.threads = 1;
  for (int lanes : {1, 4}) {
    options.target.set_lanes(lanes);
    options.target.set_buffer_alignment(256);
    options.target.set_window_alignment(4096);
    expect_equal(
        RunTraining(ParityConfig(GetParam(), 2, {kFewSteps}), options));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ShardedParity,
                         ::testing::Values(kParityGpt2, kParityLlama),
                         [](const auto& info) {
                           return info.index == 0 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace shardgraph
