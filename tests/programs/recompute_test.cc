// shard.recompute=AUTO as a user starts it: it says what it chose, trains to
// the same bits as without, and goes on with the same choice.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

using testing::HasSubstr;

class RecomputeTest : public testing::Test {
 protected:
  RecomputeTest() : folder_(TestFolder()) {
    // Where activations are most of the memory.
    WriteText(
        folder_ + "/config.textproto",
        absl::StrReplaceAll(SmallConfig(),
                            {{"n_layer: 2", "n_layer: 4"},
                             {"micro_batch_size: 1", "micro_batch_size: 3"},
                             {"sequence_length: 16", "sequence_length: 32"}}));
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(5000));
  }

  // Exit status 0 is expected, or `status`.
  std::string Train(const std::string& run, std::vector<std::string> overrides,
                    int status = 0) {
    std::vector<std::string> arguments = {
        absl::StrCat("--config=", folder_, "/config.textproto"), "--nproc=2",
        absl::StrCat("--run_dir=", folder_, "/", run),
        absl::StrCat("data.path=", folder_, "/tokens.bin"),
        "schedule.decay_steps=5"};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    Process process("tools/train/train", arguments);
    EXPECT_EQ(process.Wait(), status) << process.output();
    return process.output();
  }

  // Losses and norms as they are printed, to the last digit.
  std::vector<std::pair<double, double>> Metrics(const std::string& run) {
    std::vector<std::pair<double, double>> metrics;
    const std::string text =
        ReadText(absl::StrCat(folder_, "/", run, "/metrics.jsonl"));
    for (const absl::string_view line :
         absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json step = ParseJson(std::string(line));
      metrics.emplace_back(step.at("loss"), step.at("grad_norm"));
    }
    return metrics;
  }

  const std::string folder_;
};

TEST_F(RecomputeTest, AutoTrainsAsWithoutAndGoesOnWithItsChoice) {
  Train("plain", {"run.steps=5"});
  const std::vector<std::string> little = {"shard.recompute=AUTO",
                                           "shard.memory_budget_bytes=1"};
  const std::string refused = Train("refused", little, 2);
  const std::string words = "a rank needs ";
  const size_t at = refused.find(words);
  ASSERT_NE(at, std::string::npos) << refused;
  const int64_t least = std::stoll(refused.substr(at + words.size()));

  std::vector<std::string> enough = {
      "shard.recompute=AUTO", absl::StrCat("shard.memory_budget_bytes=", least),
      "run.steps=3"};
  const std::string first = Train("auto", enough);
  EXPECT_THAT(first, HasSubstr("recompute AUTO: at most"));
  EXPECT_THAT(first, HasSubstr("this run's trials"));
  const std::string choice = ReadText(folder_ + "/auto/recompute.textproto");
  EXPECT_THAT(choice, HasSubstr("pattern: "));
  const std::string config = ReadText(folder_ + "/auto/config.textproto");
  EXPECT_THAT(config, HasSubstr("recompute_units"));
  enough.back() = "run.steps=5";
  EXPECT_THAT(Train("auto", enough), HasSubstr("resumed after step 3"));
  EXPECT_EQ(ReadText(folder_ + "/auto/recompute.textproto"), choice);
  EXPECT_EQ(Metrics("auto").size(), 5u);
  EXPECT_EQ(Metrics("auto"), Metrics("plain"));
}

}  // namespace
}  // namespace shardgraph
