// Every strategy on every mesh gives the numbers of one rank.
//
// STRATEGY_MATRIX=full in the environment tries each with and without
// recomputation, in one micro-batch and in three, on both models, for 20 steps;
// otherwise each on one model, once and for fewer, so that every strategy meets
// every value of the others.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

// A strategy in a world: overrides of the config.
struct Mesh {
  int world = 1;
  std::vector<std::string> overrides;

  std::string ToString() const {
    return absl::StrCat("world ", world, ", ", absl::StrJoin(overrides, " "));
  }
};

// HYBRID in groups of every size, one and the world among them; FULL_SHARD
// resharded to fewer ranks as well.
std::vector<Mesh> Meshes(int most_ranks) {
  std::vector<Mesh> meshes;
  for (int world = 1; world <= most_ranks; ++world) {
    for (const char* strategy :
         {"FULL_SHARD", "SHARD_GRAD_OP", "ZERO1", "NO_SHARD"}) {
      meshes.push_back({world, {absl::StrCat("shard.strategy=", strategy)}});
    }
    for (int size = 1; size <= world; ++size) {
      if (world % size != 0) continue;
      meshes.push_back({world,
                        {"shard.strategy=HYBRID",
                         absl::StrCat("shard.shard_group_size=", size)}});
    }
    for (int size = 2; size < world; ++size) {
      if (world % size != 0) continue;
      meshes.push_back({world,
                        {"shard.strategy=FULL_SHARD",
                         absl::StrCat("shard.reshard_group_size=", size)}});
    }
  }
  return meshes;
}

std::vector<std::string> With(std::vector<std::string> overrides,
                              const std::string& more) {
  overrides.push_back(more);
  return overrides;
}

bool FullMatrix() {
  const char* const wanted = std::getenv("STRATEGY_MATRIX");
  return wanted != nullptr && std::string(wanted) == "full";
}

// In short, each mesh on one of the models.
bool SkipsMesh(const char* model, int turn) {
  return !FullMatrix() && (model == kParityGpt2) != (turn % 2 == 0);
}

std::string Steps() { return FullMatrix() ? "run.steps=20" : "run.steps=5"; }

class StrategyParity : public ::testing::TestWithParam<const char*> {};

// Replicas are compared bit by bit by RunTraining.
TEST_P(StrategyParity, GivesTheNumbersOfOneRank) {
  const bool full = FullMatrix();
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one =
      RunTraining(ParityConfig(GetParam(), 12, {Steps()}), options);
  ASSERT_TRUE(one.ok()) << one.status();
  if (full) {
    EXPECT_LT(one->losses.back(), one->losses.front());
  }
  int turn = -1;
  for (const Mesh& mesh : Meshes(4)) {
    if (SkipsMesh(GetParam(), ++turn)) continue;
    for (int choice = 0; choice < 4; ++choice) {
      if (!full && choice != (turn + turn / 4) % 4) continue;
      const bool recompute = choice % 2 == 1;
      const int accumulation = choice / 2 == 1 ? 3 : 1;
      SCOPED_TRACE(absl::StrCat(mesh.ToString(),
                                recompute ? ", recomputed" : "",
                                ", accumulation ", accumulation));
      options.world_size = mesh.world;
      const absl::StatusOr<TrainingRunResult> run = RunTraining(
          ParityConfig(
              GetParam(), 12 / mesh.world / accumulation,
              With(With(mesh.overrides, recompute ? "shard.recompute=FULL"
                                                  : "shard.recompute=NONE"),
                   Steps())),
          options);
      ASSERT_TRUE(run.ok()) << run.status();
      ExpectSame(*run, *one);
      if (HasFailure()) return;
    }
  }
}

// Rounded parameters are gathered, or rounded and then gathered: the same bits.
// Sums over two ranks are the same in any grouping.
TEST_P(StrategyParity, TwoRanksGiveTheSameBitsInBf16) {
  TrainingRunOptions options;
  options.world_size = 2;
  const auto run = [&](const std::vector<std::string>& overrides) {
    return RunTraining(
        ParityConfig(
            GetParam(), 3,
            With(With(overrides, "precision.compute=BF16"), "run.steps=5")),
        options);
  };
  const absl::StatusOr<TrainingRunResult> first = run({});
  ASSERT_TRUE(first.ok()) << first.status();
  for (const Mesh& mesh : Meshes(2)) {
    if (mesh.world != 2) continue;
    SCOPED_TRACE(mesh.ToString());
    const absl::StatusOr<TrainingRunResult> other = run(mesh.overrides);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->losses, first->losses);
    EXPECT_EQ(other->weights, first->weights);
  }
}

// From wherever backward gathers them, parameters have the same bits.
TEST_P(StrategyParity, ReshardGroupsChangeNoBits) {
  TrainingRunOptions options;
  options.world_size = 4;
  const auto run = [&](const std::vector<std::string>& overrides) {
    return RunTraining(
        ParityConfig(GetParam(), 1, With(overrides, "run.steps=3")), options);
  };
  const std::vector<std::vector<std::string>> choices = {
      {"precision.compute=BF16", "shard.recompute=FULL"},
      {"shard.reduce_once=true", "optimizer.frozen=.*(attn|embed).*"},
      {"shard.strategy=HYBRID", "shard.shard_group_size=2"}};
  for (size_t i = 0; i < choices.size(); ++i) {
    SCOPED_TRACE(choices[i][0]);
    const absl::StatusOr<TrainingRunResult> first = run(choices[i]);
    ASSERT_TRUE(first.ok()) << first.status();
    for (const char* size : {"1", "2"}) {
      const absl::StatusOr<TrainingRunResult> other = run(
          With(choices[i], absl::StrCat("shard.reshard_group_size=", size)));
      ASSERT_TRUE(other.ok()) << other.status();
      EXPECT_EQ(other->losses, first->losses);
      EXPECT_EQ(other->weights, first->weights);
    }
  }
}

// Accumulated whole and reduced once: the same but for the order of sums.
TEST_P(StrategyParity, ReducingOnceGivesTheNumbersOfOneRank) {
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one =
      RunTraining(ParityConfig(GetParam(), 12, {Steps()}), options);
  ASSERT_TRUE(one.ok()) << one.status();
  int turn = 0;
  for (const Mesh& mesh : Meshes(4)) {
    if (mesh.world == 1 || mesh.world == 3) continue;
    if (SkipsMesh(GetParam(), ++turn)) continue;
    SCOPED_TRACE(mesh.ToString());
    options.world_size = mesh.world;
    const absl::StatusOr<TrainingRunResult> run = RunTraining(
        ParityConfig(
            GetParam(), 12 / mesh.world / 3,
            With(With(mesh.overrides, "shard.reduce_once=true"), Steps())),
        options);
    ASSERT_TRUE(run.ok()) << run.status();
    ExpectSame(*run, *one);
    if (HasFailure()) return;
  }
}

// Each rank's part of a gradient is rounded once for each sum, of which HYBRID
// has two: by up to 2^-9 of an element. Parts may be larger than their sum.
TEST_P(StrategyParity, ReducingInBf16RoundsWhatIsSent) {
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one =
      RunTraining(ParityConfig(GetParam(), 12, {"run.steps=1"}), options);
  ASSERT_TRUE(one.ok()) << one.status();
  int turn = 0;
  for (const Mesh& mesh : Meshes(4)) {
    if (mesh.world == 1 || SkipsMesh(GetParam(), ++turn)) continue;
    for (const char* once : {"false", "true"}) {
      SCOPED_TRACE(absl::StrCat(mesh.ToString(), ", once ", once));
      options.world_size = mesh.world;
      std::vector<std::string> overrides = mesh.overrides;
      overrides.insert(overrides.end(),
                       {"run.steps=1", "precision.reduce=BF16",
                        absl::StrCat("shard.reduce_once=", once)});
      const absl::StatusOr<TrainingRunResult> run = RunTraining(
          ParityConfig(GetParam(), 12 / mesh.world / 2, overrides), options);
      ASSERT_TRUE(run.ok()) << run.status();
      EXPECT_NEAR(run->losses[0], one->losses[0], 1e-6);
      double worst = 0;
      for (const auto& [name, gradient] : one->gradients) {
        const double difference =
            RelativeDifference(run->gradients.at(name), gradient);
        EXPECT_LE(difference, std::exp2(-7)) << name;
        worst = std::max(worst, difference);
      }
      EXPECT_GE(worst, std::exp2(-11));
    }
  }
}

// What is frozen keeps its bits; the rest is trained as on one rank.
TEST_P(StrategyParity, FrozenParametersStay) {
  constexpr char kFrozen[] = ".*(attn|embed|wpe|down_proj).*";
  const std::regex frozen(kFrozen);
  const std::string freeze = absl::StrCat("optimizer.frozen=", kFrozen);
  TrainingRunOptions options;
  const absl::StatusOr<TrainingRunResult> one = RunTraining(
      ParityConfig(GetParam(), 12, {freeze, "run.steps=3"}), options);
  ASSERT_TRUE(one.ok()) << one.status();
  int turn = 0;
  for (const Mesh& mesh : Meshes(4)) {
    if (mesh.world == 1 || mesh.world == 3) continue;
    if (SkipsMesh(GetParam(), ++turn)) continue;
    for (const char* compute : {"FP32", "BF16"}) {
      SCOPED_TRACE(absl::StrCat(mesh.ToString(), ", ", compute));
      options.world_size = mesh.world;
      std::vector<std::string> overrides = mesh.overrides;
      overrides.insert(
          overrides.end(),
          {freeze, "run.steps=3", absl::StrCat("precision.compute=", compute)});
      const absl::StatusOr<TrainingRunResult> run = RunTraining(
          ParityConfig(GetParam(), 12 / mesh.world / 3, overrides), options);
      ASSERT_TRUE(run.ok()) << run.status();
      if (std::string(compute) == "FP32") ExpectSame(*run, *one);
      int still = 0;
      for (const auto& [name, weights] : run->weights) {
        const bool same = weights == run->initial.at(name);
        EXPECT_EQ(same, std::regex_match(name, frozen)) << name;
        still += same;
      }
      EXPECT_GT(still, 5);
      if (HasFailure()) return;
    }
  }
}

// One step of SGD: the update is the rate times gradient plus decayed weight.
TEST_P(StrategyParity, GroupsHaveTheirRateAndDecay) {
  const auto run = [](double factor, double decay) {
    TrainConfig config =
        ParityConfig(GetParam(), 6, {"run.steps=1", "shard.strategy=ZERO1"});
    ParameterGroup* group = config.mutable_optimizer()->add_groups();
    group->set_pattern(".*(mlp|norm|ln_).*");
    group->set_learning_rate_factor(factor);
    group->set_weight_decay(decay);
    TrainingRunOptions options;
    options.world_size = 2;
    const absl::StatusOr<TrainingRunResult> result =
        RunTraining(config, options);
    SG_CHECK_OK(result);
    return *result;
  };
  const TrainingRunResult plain = run(1, 0);
  const TrainingRunResult slow = run(0.25, 0);
  const TrainingRunResult decayed = run(1, 0.5);
  const std::regex named(".*(mlp|norm|ln_).*");
  int seen = 0;
  for (const auto& [name, before] : plain.initial) {
    SCOPED_TRACE(name);
    const std::vector<float>& after = plain.weights.at(name);
    if (!std::regex_match(name, named)) {
      EXPECT_EQ(slow.weights.at(name), after);
      EXPECT_EQ(decayed.weights.at(name), after);
      continue;
    }
    ++seen;
    for (size_t i = 0; i < before.size(); ++i) {
      const double update = after[i] - before[i];
      EXPECT_NEAR(slow.weights.at(name)[i], before[i] + 0.25 * update, 1e-6);
      EXPECT_NEAR(decayed.weights.at(name)[i], after[i] - 0.1 * 0.5 * before[i],
                  1e-6);
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(seen, 5);
}

INSTANTIATE_TEST_SUITE_P(Models, StrategyParity,
                         ::testing::Values(kParityGpt2, kParityLlama),
                         [](const auto& info) {
                           return info.index == 0 ? "Gpt2" : "Llama";
                         });

// Of each element of `parameter`.
std::vector<float> InjectedGradient(const Parameter& parameter) {
  const RandomKey key = MakeRandomKey(1, HashName(parameter.name));
  std::vector<float> gradient(parameter.numel());
  for (size_t i = 0; i < gradient.size(); ++i)
    gradient[i] = RandomNormal(key, i);
  return gradient;
}

// Each element counts once: no padding (here not a number), no replicas.
TEST(StrategyNorm, OfInjectedGradientsIsThatOfOneRank) {
  for (const Mesh& mesh : Meshes(4)) {
    SCOPED_TRACE(mesh.ToString());
    std::mutex mutex;
    std::vector<double> norms;
    double expected = 0;
    TrainingRunOptions options;
    options.world_size = mesh.world;
    options.after_step = [&](int rank, int64_t step, Executor& executor,
                             const TrainingPlan& plan) {
      double squares = 0;
      for (size_t u = 0; u < plan.units.size(); ++u) {
        const FlatParameter& flat = plan.layout.units()[u].flat;
        std::vector<float> shard(flat.shard_numel,
                                 std::numeric_limits<float>::quiet_NaN());
        std::vector<std::vector<float>> gradients;
        for (const FlatMember& member : flat.members)
          gradients.push_back(InjectedGradient(*member.parameter));
        for (const MemberPiece& piece :
             flat.PiecesOf(rank % plan.groups.shard)) {
          std::copy_n(gradients[piece.member].begin() + piece.member_begin,
                      piece.elements, shard.begin() + piece.shard_begin);
        }
        SG_CHECK_OK(executor.WriteBuffer(plan.units[u].gradient, 0,
                                         shard.data(), 4 * shard.size()));
        for (const std::vector<float>& gradient : gradients) {
          for (const double value : gradient) squares += value * value;
        }
      }
      StepState state;
      SG_CHECK_OK(executor.ReadBuffer(plan.state, 0, &state, sizeof(state)));
      state.token_count = state.nominal_tokens / mesh.world;
      SG_CHECK_OK(executor.WriteBuffer(plan.state, 0, &state, sizeof(state)));
      SG_CHECK_OK(executor.Run(plan.plan.graph.FindPhase("update")));
      SG_CHECK_OK(executor.ReadBuffer(plan.state, 0, &state, sizeof(state)));
      const std::lock_guard<std::mutex> lock(mutex);
      norms.push_back(state.gradient_norm);
      if (rank == 0) expected = std::sqrt(squares);
    };
    const absl::StatusOr<TrainingRunResult> run = RunTraining(
        ParityConfig(kParityGpt2, 1, With(mesh.overrides, "run.steps=1")),
        options);
    ASSERT_TRUE(run.ok()) << run.status();
    ASSERT_EQ(norms.size(), static_cast<size_t>(mesh.world));
    for (const double norm : norms) {
      EXPECT_NEAR(norm / expected, 1, 1e-6);
      EXPECT_EQ(norm, norms[0]);
    }
  }
}

}  // namespace
}  // namespace shardgraph
