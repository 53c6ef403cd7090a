#include "tools/presets/presets.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "fsdp/config/train_config.h"
#include "graph/model/module.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(PresetsTest, LoadResolveAndHaveThePublishedNumbersOfParameters) {
  // Embedding and head, 6 blocks (q and o, k and v, feed-forward, two norms),
  // the last norm.
  const int64_t quickstart =
      2 * 256 * 192 +
      6 * (2 * 192 * 192 + 2 * 192 * 64 + 3 * 192 * 512 + 2 * 192) + 192;
  const std::map<std::string, int64_t> parameters = {
      {"quickstart", quickstart},  {"gpt2_124m", 124439808},
      {"gpt2_1558m", 1557611200},  {"llama2_7b", 6738415616},
      {"llama3_8b", 8030261248},   {"llama3_70b", 70553706496},
      {"qwen2_5_0_5b", 494032768},
  };
  for (const std::string& name : PresetNames(DataPath("proto/configs")))
    EXPECT_EQ(parameters.count(name), 1u) << name;
  for (const auto& [name, numel] : parameters) {
    SCOPED_TRACE(name);
    absl::StatusOr<TrainConfig> config = LoadConfig(name, {});
    ASSERT_TRUE(config.ok()) << config.status();
    const auto model = MakeModel(config->model());
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->numel(), numel);
    for (int world : {1, 8}) {
      TrainConfig resolved = *config;
      ResolveTrainConfig((*model)->max_positions(), world, &resolved);
      const absl::Status status =
          ValidateTrainConfig(resolved, (*model)->max_positions(), world);
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

TEST(PresetsTest, TargetsAreNamedAsTheirFiles) {
  const auto names = PresetNames(DataPath("proto/targets"));
  EXPECT_GE(names.size(), 5u);
  for (const std::string& name : names) {
    const auto target = LoadTargetPreset(name);
    ASSERT_TRUE(target.ok()) << target.status();
    EXPECT_EQ(target->name(), name);
    EXPECT_GE(target->lanes(), 1) << name;
    EXPECT_GT(target->bf16_flops(), 0) << name;
    EXPECT_GT(target->buffer_alignment(), 0) << name;
    EXPECT_EQ(target->window_alignment() % target->buffer_alignment(), 0)
        << name;
  }
}

TEST(PresetsTest, TheTargetOfThisMachineIsThere) {
  const auto target = LoadTargetPreset("");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(target->name(), MachineTarget());
}

TEST(PresetsTest, AnUnknownNameGetsTheNearestOne) {
  const absl::Status status = LoadConfig("gpt2_124", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("gpt2_124m"), absl::string_view::npos)
      << status;
}

}  // namespace
}  // namespace shardgraph
