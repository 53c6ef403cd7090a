// A run that goes on from a checkpoint gives what the uninterrupted run gives,
// at the same world size bit for bit.
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/config/text_config.h"
#include "fsdp/train/shard_writer.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/collective/store.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tests/harness/training_run.h"

namespace shardgraph {
namespace {

constexpr int64_t kSteps = 7;
constexpr int64_t kSavedAfter = 3;  // steps

TrainConfig Config(const std::vector<std::string>& overrides) {
  TrainConfig config;
  SG_CHECK_OK(ParseTextConfig(R"(
    model { llama { vocab_size: 131 hidden_size: 36 intermediate_size: 50
                    num_hidden_layers: 3 num_attention_heads: 6
                    num_key_value_heads: 2 max_position_embeddings: 16
                    attention_dropout: 0.1 tie_word_embeddings: true } }
    optimizer { learning_rate: 1e-3 }
    schedule { kind: CONSTANT }
    data { batch_size: 12 sequence_length: 16 }
    checkpoint { keep_last: 0 }
    run { steps: 7 seed: 7 }
  )",
                              "test", &config));
  for (const std::string& assignment : overrides)
    SG_CHECK_OK(ApplyOverride(assignment, &config));
  return config;
}

CheckpointRank RankOf(const TrainConfig& config, const TrainingPlan& plan,
                      Executor& executor, int rank, int world_size) {
  CheckpointRank result;
  result.config = &config;
  result.plan = &plan;
  result.executor = &executor;
  result.rank = rank;
  result.world_size = world_size;
  return result;
}

// Trains all steps and saves after the step kSavedAfter.
TrainingRunResult RunAndSave(const TrainConfig& config, int world_size,
                             const std::string& folder) {
  InProcessStore store;
  SaveOptions save;
  save.folder = folder;
  save.step = kSavedAfter;
  save.store = &store;
  TrainingRunOptions options;
  options.world_size = world_size;
  options.after_step = [&](int rank, int64_t step, Executor& executor,
                           const TrainingPlan& plan) {
    if (step + 1 != kSavedAfter) return;
    SG_CHECK_OK(
        SaveCheckpoint(RankOf(config, plan, executor, rank, world_size), save));
  };
  const auto run = RunTraining(config, options);
  SG_CHECK_OK(run);
  return *run;
}

// Trains other weights up to kSavedAfter, spoils the optimizer's state, loads
// the checkpoint and goes on from there.
TrainingRunResult Resume(const TrainConfig& config, int world_size,
                         const std::string& folder) {
  TrainingRunOptions options;
  options.world_size = world_size;
  options.initial = [](const Parameter& parameter) {
    return std::vector<float>(parameter.numel(), 0.01f);
  };
  options.after_step = [&](int rank, int64_t step, Executor& executor,
                           const TrainingPlan& plan) {
    if (step + 1 != kSavedAfter) return;
    StepState state;
    SG_CHECK_OK(executor.ReadBuffer(plan.state, 0, &state, sizeof(state)));
    state.optimizer_step = 77;
    state.beta1_power[0] = state.beta2_power[1] = 0.3;
    SG_CHECK_OK(executor.WriteBuffer(plan.state, 0, &state, sizeof(state)));
    const auto manifest =
        LoadCheckpoint(absl::StrCat(folder, "/", CheckpointName(kSavedAfter)),
                       RankOf(config, plan, executor, rank, world_size));
    SG_CHECK_OK(manifest);
    SG_CHECK_EQ(manifest->step(), kSavedAfter);
    SG_CHECK_OK(GatherParameters(plan, executor));
    SG_CHECK_OK(executor.ReadBuffer(plan.state, 0, &state, sizeof(state)));
    SG_CHECK_EQ(state.optimizer_step, kSavedAfter);
  };
  const auto run = RunTraining(config, options);
  SG_CHECK_OK(run);
  return *run;
}

class ResumeTest : public testing::Test {
 protected:
  ResumeTest()
      : folder_(absl::StrCat(
            testing::TempDir(), "/",
            testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
  }
  const std::string folder_;
};

TEST_F(ResumeTest, AtTheSameWorldSizeBitForBit) {
  for (const char* precision : {"FP32", "BF16"}) {
    const TrainConfig config =
        Config({absl::StrCat("precision.compute=", precision)});
    for (int world : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(precision, ", world ", world));
      const TrainingRunResult whole = RunAndSave(config, world, folder_);
      const TrainingRunResult resumed = Resume(config, world, folder_);
      for (int64_t step = 0; step < kSteps; ++step) {
        if (step < kSavedAfter) {
          EXPECT_NE(resumed.losses[step], whole.losses[step]);
        } else {
          EXPECT_EQ(resumed.losses[step], whole.losses[step]) << step;
        }
      }
      EXPECT_EQ(resumed.weights, whole.weights);
    }
  }
}

TEST_F(ResumeTest, AtAnyOtherWorldSize) {
  const TrainConfig config = Config({"precision.compute=FP32"});
  const TrainingRunResult whole = RunAndSave(config, 2, folder_);
  for (int world : {1, 3, 4}) {
    SCOPED_TRACE(absl::StrCat("world ", world));
    const TrainingRunResult resumed = Resume(config, world, folder_);
    for (int64_t step = kSavedAfter; step < kSteps; ++step)
      EXPECT_NEAR(resumed.losses[step], whole.losses[step], 1e-5) << step;
    // Loosely: Adam turns rounding into steps where a gradient is next to
    // nothing.
    for (const auto& [name, weights] : whole.weights) {
      EXPECT_LE(RelativeDifference(resumed.weights.at(name), weights), 1e-4)
          << name;
    }
  }
}

TEST_F(ResumeTest, WithEveryStrategy) {
  struct Case {
    int world;
    std::vector<std::string> overrides;
    int writers;  // ranks that save
  };
  const std::vector<Case> cases = {
      {3, {"shard.strategy=SHARD_GRAD_OP"}, 3},
      {3, {"shard.strategy=ZERO1"}, 3},
      {3, {"shard.strategy=NO_SHARD"}, 1},
      {2, {"optimizer.frozen=.*mlp.*"}, 2},
      {4, {"shard.strategy=HYBRID", "shard.shard_group_size=2"}, 2},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.overrides[0]);
    const TrainConfig config = Config(c.overrides);  // BF16
    const TrainingRunResult whole = RunAndSave(config, c.world, folder_);
    std::set<std::string> ranks;
    for (const auto& entry : std::filesystem::directory_iterator(
             absl::StrCat(folder_, "/", CheckpointName(kSavedAfter)))) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("shard-", 0) == 0) ranks.insert(name.substr(6, 5));
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(c.writers));
    const TrainingRunResult resumed = Resume(config, c.world, folder_);
    for (int64_t step = kSavedAfter; step < kSteps; ++step)
      EXPECT_EQ(resumed.losses[step], whole.losses[step]) << step;
    EXPECT_EQ(resumed.weights, whole.weights);
  }
}

TEST_F(ResumeTest, WithAnotherStrategy) {
  const TrainConfig config =
      Config({"precision.compute=FP32", "shard.strategy=HYBRID",
              "shard.shard_group_size=2"});
  const TrainingRunResult whole = RunAndSave(config, 4, folder_);
  for (const char* strategy : {"FULL_SHARD", "ZERO1", "NO_SHARD"}) {
    SCOPED_TRACE(strategy);
    const TrainingRunResult resumed =
        Resume(Config({"precision.compute=FP32",
                       absl::StrCat("shard.strategy=", strategy)}),
               3, folder_);
    for (int64_t step = kSavedAfter; step < kSteps; ++step)
      EXPECT_NEAR(resumed.losses[step], whole.losses[step], 1e-5) << step;
  }
}

// Moments in BF16 are saved and loaded without loss, and go on with the random
// numbers of their step.
TEST_F(ResumeTest, WithEveryOptimizer) {
  const std::vector<std::vector<std::string>> cases = {
      {"optimizer.kind=SGD", "optimizer.momentum=0.9",
       "optimizer.learning_rate=0.05"},
      {"optimizer.kind=SGD", "optimizer.momentum=0.9",
       "optimizer.learning_rate=0.05", "precision.moments=BF16"},
      {"optimizer.kind=ADAM", "precision.moments=BF16"},
      {"optimizer.kind=LION"},
  };
  for (std::vector<std::string> overrides : cases) {
    SCOPED_TRACE(absl::StrJoin(overrides, " "));
    overrides.push_back("precision.compute=FP32");
    const TrainConfig config = Config(overrides);
    const TrainingRunResult whole = RunAndSave(config, 2, folder_);
    const TrainingRunResult resumed = Resume(config, 2, folder_);
    EXPECT_EQ(resumed.weights, whole.weights);
  }
}

}  // namespace
}  // namespace shardgraph
