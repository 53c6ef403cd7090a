// Weights on their way through the programs: a Hugging Face folder is trained
// on, with breaks, and given back, special tokens and all.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

using testing::HasSubstr;

constexpr char kLlama[] = "tests/fixtures/interop/llama31";

class WeightsTest : public testing::Test {
 protected:
  WeightsTest() : folder_(TestFolder()) {
    WriteText(Path("config.textproto"), R"(
      data { batch_size: 2 sequence_length: 8 }
      optimizer { learning_rate: 1e-3 }
    )");
    // The folders' vocabulary has 67 tokens.
    std::vector<uint16_t> tokens = SomeTokens(500);
    for (uint16_t& token : tokens) token %= 67;
    WriteTokens(Path("tokens.bin"), tokens);
  }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }
  std::string Train(const std::string& run, const std::string& from, int steps,
                    std::vector<std::string> overrides = {}) {
    std::vector<std::string> arguments = {
        absl::StrCat("--config=", Path("config.textproto")),
        absl::StrCat("--run_dir=", Path(run)),
        absl::StrCat("data.path=", Path("tokens.bin")),
        absl::StrCat("run.steps=", steps),
        absl::StrCat("checkpoint.initialize_from=", from)};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    Process process("tools/train/train", arguments);
    EXPECT_EQ(process.Wait(), 0) << process.output();
    return process.output();
  }
  nlohmann::json Exported(const std::string& run) {
    const std::string to = Path(run + "_exported");
    Process process("tools/convert/convert",
                    {absl::StrCat("--from=", Path(run)), "--to=" + to});
    EXPECT_EQ(process.Wait(), 0) << process.output();
    return ParseJson(ReadText(to + "/config.json"));
  }

  const std::string folder_;
};

TEST_F(WeightsTest, SpecialTokensSurviveTraining) {
  const nlohmann::json before =
      ParseJson(ReadText(absl::StrCat(kLlama, "/config.json")));
  ASSERT_TRUE(before["eos_token_id"].is_array());
  EXPECT_THAT(Train("first", kLlama, 1), HasSubstr("weights from "));
  EXPECT_THAT(Train("first", kLlama, 2), HasSubstr("resumed after step 1"));
  Train("second", Path("first"), 1);
  for (const char* run : {"first", "second"}) {
    const nlohmann::json after = Exported(run);
    for (const char* key : {"bos_token_id", "eos_token_id"})
      EXPECT_EQ(after[key], before[key]) << run << " " << key;
  }
}

// Only the first layer; the rest of the model is another.
TEST_F(WeightsTest, PartOfAHuggingFaceFolder) {
  Train(
      "part", kLlama, 1,
      {"model.llama.vocab_size=67", "model.llama.hidden_size=16",
       "model.llama.intermediate_size=24", "model.llama.num_hidden_layers=1",
       "model.llama.num_attention_heads=4", "model.llama.num_key_value_heads=2",
       "model.llama.max_position_embeddings=64",
       "checkpoint.initialize_parameters=model[.]layers[.]0[.].*"});
  EXPECT_TRUE(Exported("part")["eos_token_id"].is_null());
}

}  // namespace
}  // namespace shardgraph
