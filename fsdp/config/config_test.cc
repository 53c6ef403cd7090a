#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(NearestName, FindsTyposOnly) {
  const std::vector<std::string> names = {"learning_rate", "beta1", "beta2"};
  EXPECT_EQ(NearestName("learning_rte", names), "learning_rate");
  EXPECT_EQ(NearestName("beta3", names), "beta1");
  EXPECT_EQ(NearestName("zzz", names), "");
  EXPECT_EQ(NearestName("", names), "");
}

TEST(ApplyOverride, SetsEveryKindOfField) {
  TrainConfig config;
  for (const char* assignment :
       {"optimizer.learning_rate=3e-4", "run.steps=7",
        "run.seed=18446744073709551615", "shard.strategy=HYBRID",
        "shard.wrap_classes=Block, Head", "shard.prefetch=-1",
        "run.capture=false", "data.path=a=b", "model.gpt2.n_embd=64"}) {
    ASSERT_TRUE(ApplyOverride(assignment, &config).ok()) << assignment;
  }
  EXPECT_EQ(config.optimizer().learning_rate(), 3e-4);
  EXPECT_EQ(config.run().steps(), 7);
  EXPECT_EQ(config.run().seed(), 18446744073709551615u);
  EXPECT_EQ(config.shard().strategy(), HYBRID);
  ASSERT_EQ(config.shard().wrap_classes_size(), 2);
  EXPECT_EQ(config.shard().wrap_classes(1), "Head");
  EXPECT_FALSE(config.run().capture());
  EXPECT_EQ(config.data().path(), "a=b");
  EXPECT_EQ(config.model().gpt2().n_embd(), 64);
  ASSERT_TRUE(ApplyOverride("shard.wrap_classes=Head", &config).ok());
  EXPECT_EQ(config.shard().wrap_classes_size(), 1) << "a list is replaced";
}

TEST(ApplyOverride, NamesElementsOfRepeatedMessagesByIndex) {
  TrainConfig config;
  config.mutable_model()
      ->mutable_module()
      ->mutable_sequential()
      ->add_children();
  ASSERT_TRUE(
      ApplyOverride("model.module.sequential.children.0.name=embed", &config)
          .ok());
  EXPECT_EQ(config.model().module().sequential().children(0).name(), "embed");
  EXPECT_THAT(Message(ApplyOverride("model.module.sequential.children.1.name=x",
                                    &config)),
              HasSubstr("has 1 elements"));
}

TEST(ApplyOverride, SaysWhatIsWrong) {
  TrainConfig config;
  const auto expect = [&](const char* assignment,
                          const std::vector<const char*>& parts) {
    const absl::Status status = ApplyOverride(assignment, &config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << assignment;
    for (const char* part : parts)
      EXPECT_THAT(Message(status), HasSubstr(part)) << assignment;
  };
  expect("optimizer.learning_rte=1",
         {"optimizer.learning_rte", "did you mean \"learning_rate\""});
  expect("optimiser.beta1=1",
         {"the config has no \"optimiser\"", "did you mean \"optimizer\""});
  expect("run.steps=many", {"run.steps", "\"many\"", "an integer"});
  expect("run.threads=3000000000", {"run.threads", "32 bits"});
  expect("run.seed=-1", {"run.seed", "not negative"});
  expect("optimizer.beta1=nan", {"optimizer.beta1", "a number"});
  expect("run.capture=perhaps", {"run.capture", "true or false"});
  expect("shard.strategy=FULL",
         {"shard.strategy", "\"FULL\"", "FULL_SHARD", "HYBRID"});
  expect("run.steps.x=1", {"run.steps.x", "is a value"});
  expect("optimizer=1", {"optimizer is a group of fields", "learning_rate"});
  expect("run.steps", {"field.path=value"});
}

TEST(ParseTextConfig, NamesFileLineAndNearestField) {
  TrainConfig config;
  EXPECT_THAT(
      Message(ParseTextConfig("run {\n  stps: 3\n}", "my.textproto", &config)),
      AllOf(HasSubstr("my.textproto:2:"), HasSubstr("\"stps\""),
            HasSubstr("did you mean \"steps\"")));
  EXPECT_THAT(Message(ParseTextConfig("run { steps: 'x' }", "f", &config)),
              HasSubstr("f:1:"));
}

class TrainConfigTest : public ::testing::Test {
 protected:
  static TrainConfig Resolved(const std::vector<std::string>& overrides = {}) {
    TrainConfig config;
    config.mutable_run()->set_steps(100);
    for (const std::string& assignment : overrides)
      EXPECT_TRUE(ApplyOverride(assignment, &config).ok()) << assignment;
    ResolveTrainConfig(64, 2, &config);
    return config;
  }
};

TEST_F(TrainConfigTest, ResolvingIsIdempotentAndKeepsWhatIsSet) {
  const TrainConfig once =
      Resolved({"shard.prefetch=0", "shard.reshard_after_forward=false",
                "data.batch_size=6"});
  TrainConfig twice = once;
  ResolveTrainConfig(64, 2, &twice);
  EXPECT_EQ(once.SerializeAsString(), twice.SerializeAsString());
  EXPECT_FALSE(once.shard().reshard_after_forward());
  EXPECT_EQ(once.shard().max_units_in_flight(), 1);
  EXPECT_EQ(once.data().micro_batch_size(), 3);
  EXPECT_EQ(once.data().sequence_length(), 64);
  EXPECT_EQ(once.schedule().decay_steps(), 100);
  EXPECT_TRUE(ValidateTrainConfig(once, 64, 2).ok());
}

TEST_F(TrainConfigTest, ValidationNamesFieldValueAndRemedy) {
  const struct {
    const char* assignment;
    std::vector<const char*> parts;
  } cases[] = {
      {"optimizer.learning_rate=-1",
       {"optimizer.learning_rate is -1", "0 or more"}},
      {"optimizer.beta2=1", {"optimizer.beta2 is 1", "[0, 1)"}},
      {"optimizer.epsilon=0", {"optimizer.epsilon"}},
      {"loss.label_smoothing=1", {"loss.label_smoothing is 1", "[0, 1)"}},
      {"loss.z_loss=-1", {"loss.z_loss is -1", "0 (none) or more"}},
      {"optimizer.momentum=0.5",
       {"optimizer.momentum is 0.5", "left out but with optimizer.kind=SGD"}},
      {"precision.moments=FP16", {"precision.moments is FP16", "FP32 or BF16"}},
      {"data.sequence_length=65",
       {"data.sequence_length is 65", "64 positions", "at most 64"}},
      {"data.batch_size=-2", {"data.batch_size is -2"}},
      {"shard.prefetch=-1", {"shard.prefetch is -1"}},
      {"shard.max_units_in_flight=1",
       {"shard.max_units_in_flight is 1", "at least shard.prefetch + 1 = 2"}},
      {"run.device=tpu", {"run.device is \"tpu\"", "auto, cpu or cuda"}},
      {"run.steps=-5", {"run.steps is -5"}},
      {"run.trace_steps=-1", {"run.trace_steps is -1", "0 (no trace)"}},
      {"run.trace_first_step=-1", {"run.trace_first_step is -1"}},
      {"schedule.final_fraction=2", {"schedule.final_fraction is 2"}},
      {"schedule.stable_until=5",
       {"schedule.stable_until is 5", "WARMUP_STABLE_DECAY"}},
      {"shard.strategy=HYBRID",
       {"shard.shard_group_size is 0", "must divide the world of 2 ranks"}},
      {"shard.shard_group_size=2",
       {"shard.shard_group_size is 2", "shard.strategy is FULL_SHARD",
        "set shard.strategy=HYBRID"}},
      {"shard.reshard_group_size=3",
       {"shard.reshard_group_size is 3", "must divide the 2 ranks"}},
      {"shard.reshard_group_size=-1", {"shard.reshard_group_size is -1"}},
      {"precision.loss_scale.initial=8",
       {"precision.loss_scale is given", "precision.compute is BF16",
        "set precision.compute=FP16"}},
      {"precision.reduce=FP16", {"precision.reduce is FP16", "FP32 or BF16"}},
  };
  for (const auto& c : cases) {
    const absl::Status status =
        ValidateTrainConfig(Resolved({c.assignment}), 64, 2);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument)
        << c.assignment;
    for (const char* part : c.parts)
      EXPECT_THAT(Message(status), HasSubstr(part)) << c.assignment;
  }
  EXPECT_THAT(
      Message(ValidateTrainConfig(
          Resolved({"run.deterministic=false", "run.device=cpu"}), 64, 2)),
      HasSubstr("a CPU always is deterministic"));
  EXPECT_TRUE(
      ValidateTrainConfig(Resolved({"run.deterministic=false"}), 64, 2).ok());
}

TEST_F(TrainConfigTest, Fp16HasALossScaleAndSkips) {
  const TrainConfig fp16 = Resolved({"precision.compute=FP16"});
  EXPECT_TRUE(ValidateTrainConfig(fp16, 64, 2).ok());
  EXPECT_EQ(fp16.precision().loss_scale().initial(), 65536);
  EXPECT_EQ(fp16.run().non_finite(), RunSpec::SKIP);
  EXPECT_EQ(Resolved({}).run().non_finite(), RunSpec::STOP);
  const struct {
    const char* assignment;
    const char* part;
  } cases[] = {
      {"run.non_finite=STOP", "run.non_finite is STOP; it must be SKIP"},
      {"precision.loss_scale.initial=0", "loss_scale.initial is 0"},
      {"precision.loss_scale.growth_factor=0.5", "growth_factor is 0.5"},
      {"precision.loss_scale.backoff_factor=1", "backoff_factor is 1"},
      {"precision.loss_scale.growth_interval=0", "growth_interval is 0"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Message(ValidateTrainConfig(
                    Resolved({"precision.compute=FP16", c.assignment}), 64, 2)),
                HasSubstr(c.part));
  }
}

TEST_F(TrainConfigTest, LoadsPresetsAndFilesAndNamesTheNearest) {
  const std::string folder = ::testing::TempDir() + "/presets";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/small.textproto") << "run { steps: 3 }";
  const absl::StatusOr<TrainConfig> preset =
      LoadTrainConfig("small", folder, {"run.seed=5"});
  ASSERT_TRUE(preset.ok()) << preset.status();
  EXPECT_EQ(preset->run().steps(), 3);
  EXPECT_EQ(preset->run().seed(), 5u);
  EXPECT_TRUE(
      LoadTrainConfig(folder + "/small.textproto", "/nowhere", {}).ok());
  EXPECT_THAT(Message(LoadTrainConfig("smal", folder, {}).status()),
              HasSubstr("did you mean \"small\""));
  EXPECT_THAT(Message(LoadTrainConfig(folder, folder, {}).status()),
              HasSubstr("is a directory"));
}

TEST(LoadTarget, ReadsPresetsAndNamesTheFieldThatMakesNoSense) {
  const std::string path = ::testing::TempDir() + "/target.textproto";
  const auto load = [&](const std::string& text) {
    const bool has_lanes = text.find("lanes") != std::string::npos;
    std::ofstream(path) << (has_lanes ? "" : "lanes: 2 ") << text;
    return LoadTarget(path, "/nowhere");
  };
  const auto target = load(
      "workspace_budget { key: \"matmul\" value: 5 } "
      "fusions: \"matmul_gelu\" "
      "window_alignment: 4096");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(target->workspace_budget().at("matmul"), 5);
  const struct {
    const char* text;
    std::vector<const char*> parts;
  } cases[] = {
      {"workspace_budget { key: \"matmull\" value: 5 }",
       {"target.textproto", "workspace_budget[\"matmull\"]",
        "did you mean \"matmul\"", "attention"}},
      {"workspace_budget { key: \"loss\" value: -5 }",
       {"workspace_budget[\"loss\"] is -5", "0 or more"}},
      {"window_alignment: -1", {"window_alignment is -1"}},
      {"buffer_alignment: -8", {"buffer_alignment is -8"}},
      {"lanes: 5", {"lanes is 5", "1 to 4"}},
      {"fusions: \"add_rms_norm\"",
       {"fusions: \"add_rms_norm\"", "matmul_gelu, "}},
  };
  for (const auto& c : cases) {
    const std::string message = Message(load(c.text).status());
    for (const char* part : c.parts)
      EXPECT_THAT(message, HasSubstr(part)) << c.text;
  }
}

}  // namespace
}  // namespace shardgraph
