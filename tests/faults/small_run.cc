#include "tests/faults/small_run.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

namespace shardgraph {

std::string TestFolder() {
  const testing::TestInfo& info =
      *testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/",
                   absl::StrReplaceAll(
                       absl::StrCat(info.test_suite_name(), ".", info.name()),
                       {{"/", "-"}}));
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

void WriteText(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void WriteTokens(const std::string& path, const std::vector<uint16_t>& tokens) {
  WriteText(path, std::string(reinterpret_cast<const char*>(tokens.data()),
                              tokens.size() * sizeof(uint16_t)));
}

std::vector<uint16_t> SomeTokens(int64_t count) {
  std::vector<uint16_t> tokens(count);
  uint32_t state = 1;
  for (uint16_t& token : tokens) {
    state = state * 1664525u + 1013904223u;
    token = static_cast<uint16_t>((state >> 16) % kSmallVocabulary);
  }
  return tokens;
}

std::string SmallConfig() {
  return absl::StrCat(
      "model {\n  gpt2 {\n    vocab_size: ", kSmallVocabulary,
      "\n    n_positions: 32\n    n_embd: 36\n    n_layer: 2\n"
      "    n_head: 4\n  }\n}\n"
      "data { batch_size: 6 sequence_length: 16 micro_batch_size: 1 }\n"
      "run { steps: 4 seed: 3 threads: 1 }\n");
}

}  // namespace shardgraph
