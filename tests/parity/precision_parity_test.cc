// Optimizers and precisions in training: the numbers of one rank on any number,
// the same bits with every strategy; and what is not finite.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tests/harness/training_run.h"
#include "tests/parity/overflows.h"
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

TEST(LossScale, FollowsGradScalerWithOverflowsOnOneRank) {
  for (const Overrides& mesh :
       {Overrides{}, Overrides{"shard.strategy=NO_SHARD", "run.capture=false"},
        Overrides{"shard.strategy=HYBRID", "shard.shard_group_size=1",
                  "optimizer.momentum=0.9"}}) {
    SCOPED_TRACE(absl::StrJoin(mesh, " "));
    Overflows run = Overflows::OfGradScaler(mesh);
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
                                   const TrainingPlan&) {
      if (rank == 0) ++steps;
    };
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
