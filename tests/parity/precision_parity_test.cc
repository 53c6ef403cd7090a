// Optimizers and precisions in training: the numbers of one rank on any number,
// the same bits with every strategy; and what is not finite.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "nlohmann/json.hpp"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

using Overrides = std::vector<std::string>;

Overrides With(Overrides overrides, const Overrides& more) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

TrainingRunResult Train(const Overrides& overrides, int world,
                        int accumulation = 1) {
  TrainingRunOptions options;
  options.world_size = world;
  const absl::StatusOr<TrainingRunResult> run = RunTraining(
      ParityConfig(kParityLlama, 12 / world / accumulation, overrides),
      options);
  SG_CHECK_OK(run);
  return *run;
}

const Overrides kAdam = {"optimizer.kind=ADAM", "optimizer.learning_rate=1e-2",
                         "optimizer.weight_decay=0.1", "run.steps=6"};
const Overrides kAdamW = {"optimizer.kind=ADAMW",
                          "optimizer.learning_rate=1e-2",
                          "optimizer.weight_decay=0.1", "run.steps=6"};
const Overrides kMomentum = {"optimizer.kind=SGD", "optimizer.momentum=0.9",
                             "optimizer.weight_decay=0.1", "run.steps=6"};
const Overrides kLion = {"optimizer.kind=LION", "optimizer.learning_rate=1e-3",
                         "optimizer.weight_decay=0.1", "run.steps=6"};

// Loosely: next to nothing, a gradient has any sign, which Lion and the first
// steps of Adam take.
TEST(Optimizers, GiveTheNumbersOfOneRank) {
  for (const Overrides& kind : {kAdam, kAdamW, kMomentum, kLion}) {
    SCOPED_TRACE(absl::StrJoin(kind, " "));
    const TrainingRunResult one = Train(kind, 1);
    EXPECT_LT(one.losses.back(), one.losses.front());
    for (const Overrides& mesh :
         {Overrides{}, Overrides{"shard.strategy=ZERO1"}}) {
      const TrainingRunResult run =
          Train(With(kind, mesh), mesh.empty() ? 3 : 2, 2);
      for (size_t i = 0; i < one.losses.size(); ++i)
        EXPECT_NEAR(run.losses[i], one.losses[i], 1e-5) << "step " << i;
      for (const auto& [name, weights] : one.weights)
        EXPECT_LE(RelativeDifference(run.weights.at(name), weights), 1e-3)
            << name;
    }
  }
}

// Adam's decay goes through the moments, AdamW's does not.
TEST(Optimizers, Differ) {
  const std::vector<Overrides> kinds = {kAdam, kAdamW, kMomentum, kLion};
  std::vector<std::vector<double>> losses;
  for (const Overrides& kind : kinds) losses.push_back(Train(kind, 1).losses);
  for (size_t i = 0; i < kinds.size(); ++i) {
    EXPECT_EQ(losses[i][0], losses[0][0]);
    for (size_t k = 0; k < i; ++k) EXPECT_NE(losses[i], losses[k]);
  }
}

// Two ranks sum in one order: what is rounded by chance must not depend on how
// parameters are split either.
TEST(MomentsInBf16, AreTheSameWithEveryStrategy) {
  for (const Overrides& kind : {kAdamW, kMomentum, kLion}) {
    SCOPED_TRACE(kind[0]);
    const Overrides rounded = With(kind, {"precision.moments=BF16"});
    const TrainingRunResult first = Train(rounded, 2);
    const TrainingRunResult exact = Train(kind, 2);
    EXPECT_NE(first.weights, exact.weights);
    EXPECT_EQ(first.losses[0], exact.losses[0]);
    for (size_t i = 1; i < exact.losses.size(); ++i)
      EXPECT_NEAR(first.losses[i], exact.losses[i], 2e-2) << i;
    for (const Overrides& mesh :
         {Overrides{"shard.strategy=NO_SHARD"},
          Overrides{"shard.strategy=ZERO1", "run.capture=false"},
          Overrides{"shard.strategy=HYBRID", "shard.shard_group_size=1"}}) {
      SCOPED_TRACE(mesh[0]);
      const TrainingRunResult other = Train(With(rounded, mesh), 2);
      EXPECT_EQ(other.losses, first.losses);
      EXPECT_EQ(other.weights, first.weights);
    }
  }
}

// Twice the ranks, twice the rate; four times, twice the rate by square root.
TEST(LearningRateScaling, FollowsTheWorld) {
  const Overrides plain = {"optimizer.learning_rate=0.2", "run.steps=3"};
  const Overrides half = {"optimizer.learning_rate=0.1", "run.steps=3"};
  EXPECT_EQ(
      Train(With(half, {"optimizer.learning_rate_scaling=LINEAR"}), 2).weights,
      Train(plain, 2).weights);
  EXPECT_EQ(
      Train(With(half, {"optimizer.learning_rate_scaling=SQUARE_ROOT"}), 4)
          .weights,
      Train(plain, 4).weights);
}

// A model of which one token leaves the range of the compute dtype, in steps
// and sequences of the test's choice.
class Overflows {
 public:
  static constexpr int64_t kToken = 130;

  explicit Overflows(const Overrides& overrides)
      : config_(ParityConfig(
            "gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 2 "
            "n_head: 3 tie_word_embeddings: false }",
            6, With({"optimizer.learning_rate=0.01"}, overrides))) {
    options_.world_size = 2;
    const bool fp16 = config_.precision().compute() == FP16;
    options_.initial = [fp16](const Parameter& parameter) {
      std::vector<float> values(parameter.numel());
      const RandomKey key = MakeRandomKey(1, HashName(parameter.name));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = parameter.init == Parameter::Init::kOnes
                        ? 1
                        : 0.1f * RandomNormal(key, i);
      // In F16 the sum with the position leaves the range, in F32 the mean of
      // the first norm. Signs alternate in F16, so that norms see no constant.
      const int64_t width = parameter.shape.back();
      const auto fill = [&](int64_t row, float value) {
        for (int64_t c = 0; c < width; ++c)
          values[row * width + c] = fp16 && c % 2 == 1 ? -value : value;
      };
      if (parameter.name == "transformer.wte.weight")
        fill(kToken, fp16 ? 60000.0f : 3e38f);
      if (parameter.name == "transformer.wpe.weight" && fp16) fill(5, 6000.0f);
      return values;
    };
  }

  // The token comes in these steps, in the last sequence, which only rank
  // `rank` has.
  void In(const std::vector<int64_t>& steps, int rank) {
    options_.sequences = [steps, rank](int64_t sequence,
                                       absl::Span<int32_t> tokens,
                                       absl::Span<int32_t> targets) {
      for (size_t t = 0; t < tokens.size(); ++t) {
        tokens[t] = static_cast<int32_t>((sequence * 7 + t) % kToken);
        targets[t] = static_cast<int32_t>((sequence * 7 + t + 1) % kToken);
      }
      const bool chosen =
          std::count(steps.begin(), steps.end(), sequence / 12) > 0;
      if (chosen && sequence % 12 == (rank == 0 ? 5 : 11)) tokens[5] = kToken;
    };
  }

  TrainingRunOptions& options() { return options_; }
  absl::StatusOr<TrainingRunResult> Train() {
    return RunTraining(config_, options_);
  }

 private:
  TrainConfig config_;
  TrainingRunOptions options_;
};

StepState StateOf(Executor& executor, const TrainingPlan& plan) {
  StepState state;
  SG_CHECK_OK(executor.ReadBuffer(plan.state, 0, &state, sizeof(state)));
  return state;
}

// All bytes of the masters and moments of a rank.
std::vector<char> WeightsOf(Executor& executor, const TrainingPlan& plan) {
  std::vector<char> all;
  for (const UnitBuffers& unit : plan.units) {
    for (const BufferId buffer : {unit.master, unit.compute, unit.exp_avg}) {
      if (buffer == kNone) continue;
      std::vector<char> bytes(plan.plan.graph.buffers[buffer].bytes);
      SG_CHECK_OK(executor.ReadBuffer(buffer, 0, bytes.data(),
                                      static_cast<int64_t>(bytes.size())));
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
  }
  return all;
}

TEST(LossScale, FollowsGradScalerWithOverflowsOnOneRank) {
  nlohmann::json truth;
  std::ifstream("tests/fixtures/grad_scaler.json") >> truth;
  const std::vector<int64_t> overflows = truth["overflows"];
  for (const Overrides& mesh :
       {Overrides{}, Overrides{"shard.strategy=NO_SHARD", "run.capture=false"},
        Overrides{"shard.strategy=HYBRID", "shard.shard_group_size=1",
                  "optimizer.momentum=0.9"}}) {
    SCOPED_TRACE(absl::StrJoin(mesh, " "));
    Overflows run(With(
        mesh,
        {"precision.compute=FP16", "schedule.warmup_steps=100",
         absl::StrCat("precision.loss_scale.initial=", truth["initial"].dump()),
         absl::StrCat("precision.loss_scale.growth_interval=",
                      truth["growth_interval"].dump()),
         absl::StrCat("run.steps=", truth["steps"].dump())}));
    run.In(overflows, 1);
    std::vector<char> before[2];
    run.options().after_step = [&](int rank, int64_t step, Executor& executor,
                                   const TrainingPlan& plan) {
      const StepState state = StateOf(executor, plan);
      EXPECT_EQ(state.loss_scale, truth["scales"][step + 1]) << step;
      EXPECT_EQ(state.found_inf != 0, truth["skipped"][step]) << step;
      EXPECT_EQ(state.optimizer_step,
                step + 1 -
                    std::count_if(overflows.begin(), overflows.end(),
                                  [&](int64_t o) { return o <= step; }));
      // The schedule goes on.
      EXPECT_EQ(state.run_step, step);
      EXPECT_FLOAT_EQ(state.learning_rate[0], 0.01f * (step + 1) / 100);
      std::vector<char> after = WeightsOf(executor, plan);
      if (step > 0) {
        EXPECT_EQ(after == before[rank], truth["skipped"][step]) << step;
      }
      before[rank] = std::move(after);
    };
    const absl::StatusOr<TrainingRunResult> result = run.Train();
    ASSERT_TRUE(result.ok()) << result.status();
  }
}

TEST(Fp16, TrainsAsFp32Does) {
  const Overrides short_run = {"run.steps=8"};
  const TrainingRunResult exact = Train(short_run, 1);
  const TrainingRunResult half =
      Train(With(short_run, {"precision.compute=FP16"}), 2, 3);
  for (size_t i = 0; i < exact.losses.size(); ++i)
    EXPECT_NEAR(half.losses[i], exact.losses[i], 5e-3) << i;
  EXPECT_NE(half.losses, exact.losses);
}

// Until nothing is left of the scale.
TEST(LossScale, EndsTheRunWhenItFallsBelowOne) {
  Overflows run({"precision.compute=FP16", "run.steps=4",
                 "precision.loss_scale.initial=4"});
  run.In({0, 1, 2, 3}, 1);
  EXPECT_THAT(std::string(run.Train().status().message()),
              testing::HasSubstr("overflow even with a loss scale of 0.5"));
}

TEST(NonFinite, SkipsOnEveryRank) {
  Overflows run({"run.non_finite=SKIP", "run.steps=4"});
  run.In({1}, 1);
  std::vector<char> before[2];
  run.options().after_step = [&](int rank, int64_t step, Executor& executor,
                                 const TrainingPlan& plan) {
    EXPECT_EQ(StateOf(executor, plan).found_inf, step == 1);
    std::vector<char> after = WeightsOf(executor, plan);
    EXPECT_EQ(after == before[rank], step == 1) << step;
    before[rank] = std::move(after);
  };
  const absl::StatusOr<TrainingRunResult> result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::isnan(result->losses[1]));
  EXPECT_TRUE(std::isfinite(result->losses[3]));
}

TEST(NonFinite, IgnoresWhenAsked) {
  Overflows run({"run.non_finite=IGNORE", "run.steps=3"});
  run.In({1}, 1);
  const absl::StatusOr<TrainingRunResult> result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(std::isnan(result->losses[2]));
}

// The rank that has it names it: here rank 0, whose error RunTraining returns.
TEST(NonFinite, StopsAndNamesTheFirstModule) {
  for (const char* capture : {"run.capture=true", "run.capture=false"}) {
    Overflows run({"run.steps=4", capture});
    run.In({2}, 0);
    int64_t steps = 0;
    run.options().after_step = [&](int rank, int64_t, Executor&,
                                   const TrainingPlan&) { steps += rank == 0; };
    const std::string message(run.Train().status().message());
    EXPECT_THAT(message, testing::HasSubstr("not finite, first of all module "
                                            "transformer.h.0"));
    EXPECT_THAT(message, testing::HasSubstr("forward) in micro-batch 1 of 1"));
    EXPECT_EQ(steps, 2);
  }
}

// On the device, before the host looks: steps that follow change nothing
// either.
TEST(NonFinite, StopHolds) {
  Overflows run({"run.steps=1"});
  run.In({}, 0);
  run.options().after_step = [&](int rank, int64_t, Executor& executor,
                                 const TrainingPlan& plan) {
    const std::vector<char> before = WeightsOf(executor, plan);
    const PhaseId update = plan.plan.graph.FindPhase("update");
    for (const float value : {std::numeric_limits<float>::infinity(), 0.5f}) {
      const UnitBuffers& unit = plan.units[1];
      const std::vector<float> gradient(plan.layout.units()[1].flat.shard_numel,
                                        rank == 1 ? value : 0.5f);
      SG_CHECK_OK(executor.WriteBuffer(unit.gradient, 0, gradient.data(),
                                       4 * gradient.size()));
      StepState state = StateOf(executor, plan);
      state.token_count = 96;
      SG_CHECK_OK(executor.WriteBuffer(plan.state, 0, &state, sizeof(state)));
      SG_CHECK_OK(executor.Run(update));
      state = StateOf(executor, plan);
      EXPECT_EQ(state.stop, 1);
      EXPECT_EQ(state.found_inf, 1);
      EXPECT_EQ(state.optimizer_step, 1);
      EXPECT_EQ(WeightsOf(executor, plan), before);
    }
  };
  const absl::StatusOr<TrainingRunResult> result = run.Train();
  ASSERT_TRUE(result.ok()) << result.status();
}

}  // namespace
}  // namespace shardgraph
