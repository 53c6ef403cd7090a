// Training against PyTorch's, by the whole way that a run takes: config, plan,
// sharded ranks, optimizer. Losses and updates of 50 AdamW and 20 SGD steps in
// FP32, losses in BF16, gradients in both.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/config/text_config.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "tests/harness/fixture_models.h"
#include "tests/harness/training_run.h"

namespace shardgraph {
namespace {

using Elements = std::vector<double>;

constexpr int64_t kBatch = 3;
constexpr int64_t kLength = 24;

// Everything of one model that the files hold.
struct Fixture {
  explicit Fixture(const FixtureModel& model)
      : model(model),
        expected(ReadFixtureJson(absl::StrCat(model.name, "/expected.json"))),
        truth(ReadFixtureTensors(
            absl::StrCat(model.name, "/expected.safetensors"))),
        weights(ReadFixtureWeights(model.name)),
        tokens(ReadFixtureTensors("tokens.safetensors")) {}

  FixtureModel model;
  nlohmann::json expected;
  std::map<std::string, Elements> truth;
  std::map<std::string, Elements> weights;
  std::map<std::string, Elements> tokens;
};

TrainConfig Config(const Fixture& fixture, const std::string& compute,
                   const std::string& rest) {
  TrainConfig config;
  SG_CHECK_OK(ParseTextConfig(
      absl::StrCat(
          "model { ", fixture.model.spec, " } precision { compute: ", compute,
          " } schedule { kind: CONSTANT } ", "data { batch_size: ", kBatch,
          " sequence_length: ", kLength, " } run { seed: 1 } ", rest),
      "test", &config));
  return config;
}

TrainConfig AdamW(const Fixture& fixture, const std::string& compute) {
  const nlohmann::json& adamw = fixture.expected["adamw"];
  TrainConfig config = Config(fixture, compute, "optimizer { kind: ADAMW }");
  OptimizerSpec* optimizer = config.mutable_optimizer();
  optimizer->set_learning_rate(adamw["peak_learning_rate"]);
  optimizer->set_beta1(adamw["beta1"]);
  optimizer->set_beta2(adamw["beta2"]);
  optimizer->set_epsilon(adamw["eps"]);
  optimizer->set_weight_decay(adamw["weight_decay"]);
  optimizer->set_max_gradient_norm(adamw["clip_norm"]);
  config.mutable_schedule()->set_warmup_steps(adamw["warmup_steps"]);
  config.mutable_run()->set_steps(adamw["steps"]);
  return config;
}

TrainConfig Sgd(const Fixture& fixture, const std::string& compute) {
  const nlohmann::json& sgd = fixture.expected["sgd"];
  TrainConfig config =
      Config(fixture, compute,
             "optimizer { kind: SGD weight_decay: 0 max_gradient_norm: 0 }");
  config.mutable_optimizer()->set_learning_rate(sgd["learning_rate"]);
  config.mutable_run()->set_steps(sgd["steps"]);
  return config;
}

// Runs the config from the fixture's weights over the batches of `inputs` and
// `targets`: sequence g of the run is row g.
TrainingRunResult Train(const Fixture& fixture, const TrainConfig& config,
                        int world, const std::string& inputs,
                        const std::string& targets) {
  const Elements& all_tokens = fixture.tokens.at(inputs);
  const Elements& all_targets = fixture.tokens.at(targets);
  TrainingRunOptions options;
  options.world_size = world;
  options.initial = [&](const Parameter& parameter) {
    const Elements& weights = fixture.weights.at(parameter.name);
    return std::vector<float>(weights.begin(), weights.end());
  };
  options.sequences = [&](int64_t sequence, absl::Span<int32_t> tokens,
                          absl::Span<int32_t> targets) {
    for (int64_t t = 0; t < kLength; ++t) {
      tokens[t] = static_cast<int32_t>(all_tokens.at(sequence * kLength + t));
      targets[t] = static_cast<int32_t>(all_targets.at(sequence * kLength + t));
    }
  };
  absl::StatusOr<TrainingRunResult> result = RunTraining(config, options);
  SG_CHECK_OK(result);
  EXPECT_EQ(result->weights.size(), fixture.weights.size());
  return *std::move(result);
}

TrainingRunResult TrainOnSteps(const Fixture& fixture,
                               const TrainConfig& config, int world) {
  return Train(fixture, config, world, "train.inputs", "train.targets");
}

void ExpectLosses(const Elements& losses, const nlohmann::json& truth,
                  double tolerance) {
  ASSERT_EQ(losses.size(), truth.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], truth[i].get<double>(), tolerance) << "step " << i;
}

Elements UpdateOf(const TrainingRunResult& run, const std::string& name) {
  const std::vector<float>& after = run.weights.at(name);
  const std::vector<float>& before = run.initial.at(name);
  Elements update(after.size());
  for (size_t i = 0; i < update.size(); ++i)
    update[i] = static_cast<double>(after[i]) - before[i];
  return update;
}

// `kind`: "adamw" or "sgd".
void ExpectUpdates(const Fixture& fixture, const TrainingRunResult& run,
                   const std::string& kind, double tolerance) {
  for (const auto& [name, weights] : run.weights) {
    const Elements ours =
        WithoutKeyBias(fixture.expected, name, UpdateOf(run, name));
    const Elements truth =
        WithoutKeyBias(fixture.expected, name,
                       fixture.truth.at(absl::StrCat(kind, "_update/", name)));
    EXPECT_LE(L2Distance(ours, truth), tolerance * L2Norm(truth)) << name;
  }
}

class TrainingFixtureTest : public ::testing::TestWithParam<FixtureModel> {};

TEST_P(TrainingFixtureTest, AdamWInFp32) {
  const Fixture fixture(GetParam());
  const nlohmann::json& adamw = fixture.expected["adamw"];
  for (const int world : {1, 2, 3}) {
    SCOPED_TRACE(absl::StrCat("world ", world));
    const TrainingRunResult run =
        TrainOnSteps(fixture, AdamW(fixture, "FP32"), world);
    ExpectLosses(run.losses, adamw["losses_fp64"], 1e-5);
    ExpectUpdates(fixture, run, "adamw", 1e-3);
    for (size_t i = 0; i < run.gradient_norms.size(); ++i) {
      const double norm = adamw["grad_norms_fp64"][i];
      EXPECT_NEAR(run.gradient_norms[i], norm, 1e-4 * norm) << "step " << i;
    }
  }
}

TEST_P(TrainingFixtureTest, AccumulationGivesTheSameLosses) {
  const Fixture fixture(GetParam());
  TrainConfig config = AdamW(fixture, "FP32");
  config.mutable_data()->set_micro_batch_size(1);
  for (const int world : {1, 2}) {  // three micro-batches, and two
    SCOPED_TRACE(absl::StrCat("world ", world));
    const TrainingRunResult run = TrainOnSteps(fixture, config, world);
    ExpectLosses(run.losses, fixture.expected["adamw"]["losses_fp64"], 1e-5);
  }
}

TEST_P(TrainingFixtureTest, SgdInFp32) {
  const Fixture fixture(GetParam());
  for (const int world : {1, 2}) {
    SCOPED_TRACE(absl::StrCat("world ", world));
    const TrainingRunResult run =
        TrainOnSteps(fixture, Sgd(fixture, "FP32"), world);
    ExpectLosses(run.losses, fixture.expected["sgd"]["losses_fp64"], 1e-5);
    ExpectUpdates(fixture, run, "sgd", 1e-4);
    // Zero in exact arithmetic: what rounding leaves, over all steps.
    for (const auto& [name, weights] : run.weights) {
      EXPECT_LE(KeyBiasMax(fixture.expected, name, UpdateOf(run, name)), 1e-6)
          << name;
    }
  }
}

TEST_P(TrainingFixtureTest, AdamWInBf16) {
  const Fixture fixture(GetParam());
  const nlohmann::json& adamw = fixture.expected["adamw"];
  for (const int world : {1, 2}) {
    const TrainingRunResult run =
        TrainOnSteps(fixture, AdamW(fixture, "BF16"), world);
    ASSERT_EQ(run.losses.size(), adamw["losses_fp64"].size());
    for (size_t i = 0; i < run.losses.size(); ++i) {
      const double truth = adamw["losses_fp64"][i];
      const double torch = adamw["losses_bf16"][i];
      EXPECT_NEAR(run.losses[i], truth, 2 * std::abs(torch - truth) + 0.005)
          << "world " << world << ", step " << i;
    }
  }
}

// Gradients of the first step, gathered from two ranks' shards.
TrainingRunResult ShardedGradients(const Fixture& fixture,
                                   const std::string& compute) {
  TrainConfig config = Sgd(fixture, compute);
  config.mutable_run()->set_steps(1);
  return Train(fixture, config, 2, "gradient.inputs", "gradient.targets");
}

TEST_P(TrainingFixtureTest, GradientsInFp32) {
  const Fixture fixture(GetParam());
  const nlohmann::json& gradient = fixture.expected["gradient"];
  const TrainingRunResult run = ShardedGradients(fixture, "FP32");
  const double global = gradient["norm_fp64"];
  EXPECT_NEAR(run.losses[0], gradient["loss_fp64"].get<double>(), 1e-6);
  EXPECT_NEAR(run.gradient_norms[0], global, 1e-6 * global);
  for (const auto& [name, values] : run.gradients) {
    const nlohmann::json& torch = gradient["tensors"][name];
    const Elements whole(values.begin(), values.end());
    EXPECT_LE(
        L2Distance(WithoutKeyBias(fixture.expected, name, whole),
                   WithoutKeyBias(fixture.expected, name,
                                  fixture.truth.at("gradient/" + name))),
        3 * torch["fp32"]["error_norm"].get<double>() +
            1e-6 * std::max(torch["norm_fp64"].get<double>(), 1e-3 * global))
        << name;
    EXPECT_LE(KeyBiasMax(fixture.expected, name, whole), 1e-7 * global) << name;
  }
}

TEST_P(TrainingFixtureTest, GradientsInBf16) {
  const Fixture fixture(GetParam());
  const nlohmann::json& gradient = fixture.expected["gradient"];
  const TrainingRunResult run = ShardedGradients(fixture, "BF16");
  for (const auto& [name, values] : run.gradients) {
    const nlohmann::json& torch = gradient["tensors"][name];
    const Elements ours = WithoutKeyBias(
        fixture.expected, name, Elements(values.begin(), values.end()));
    const Elements truth = WithoutKeyBias(fixture.expected, name,
                                          fixture.truth.at("gradient/" + name));
    EXPECT_GE(Cosine(ours, truth), 0.9995) << name;
    EXPECT_LE(
        L2Distance(ours, truth) / L2Norm(truth),
        std::max(1.5 * torch["bf16"]["relative_error"].get<double>(), 2e-2))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TrainingFixtureTest,
                         ::testing::ValuesIn(FixtureModels().begin(),
                                             FixtureModels().end()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

// Adapters: nothing else moves by a bit, and nothing else has gradients,
// masters beside what computes, or moments.
TEST(LoraFixtureTest, AdamWOnAdaptersAlone) {
  const nlohmann::json lora = ReadFixtureJson("lora.json");
  const std::string name = lora["model"];
  const FixtureModel* model = nullptr;
  for (const FixtureModel& candidate : FixtureModels())
    if (candidate.name == name) model = &candidate;
  ASSERT_NE(model, nullptr);
  Fixture fixture(*model);
  const auto tensors = ReadFixtureTensors("lora.safetensors");
  std::map<std::string, Elements> updates;
  for (const auto& [key, values] : tensors) {
    if (key.rfind("initial/", 0) == 0) fixture.weights[key.substr(8)] = values;
    if (key.rfind("update/", 0) == 0) updates[key.substr(7)] = values;
  }
  for (const std::string compute : {"FP32", "BF16"}) {
    TrainConfig config = Config(
        fixture, compute, "optimizer { kind: ADAMW max_gradient_norm: 0 }");
    LoraSpec* spec = config.mutable_model()->mutable_lora();
    spec->add_modules(std::string(lora["modules"]));
    spec->set_rank(lora["rank"]);
    spec->set_alpha(lora["alpha"]);
    OptimizerSpec* optimizer = config.mutable_optimizer();
    optimizer->set_learning_rate(lora["learning_rate"]);
    optimizer->set_weight_decay(lora["weight_decay"]);
    config.mutable_run()->set_steps(lora["steps"]);
    for (const int world : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(compute, ", world ", world));
      const TrainingRunResult run = TrainOnSteps(fixture, config, world);
      ExpectLosses(run.losses, lora["losses_fp64"],
                   compute == "FP32" ? 1e-5 : 2e-2);
      for (const auto& [parameter, weights] : run.weights) {
        if (updates.count(parameter) == 0) {
          EXPECT_EQ(weights, run.initial.at(parameter)) << parameter;
          continue;
        }
        if (compute != "FP32") continue;
        const Elements& truth = updates.at(parameter);
        EXPECT_LE(L2Distance(UpdateOf(run, parameter), truth),
                  1e-3 * L2Norm(truth))
            << parameter;
      }
      EXPECT_EQ(run.gradients.size() > 0, true);
    }
  }
}

}  // namespace
}  // namespace shardgraph
