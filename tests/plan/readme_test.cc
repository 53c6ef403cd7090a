// The model that README.md puts together by hand is parsed, built and planned.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/plan/preset_plan.h"

namespace shardgraph {
namespace {

// The indented blocks of a Markdown text that begin with `first_line`.
std::vector<std::string> Blocks(const std::string& text,
                                const std::string& first_line) {
  std::vector<std::string> blocks;
  bool inside = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool indented = absl::ConsumePrefix(&line, "    ");
    if (indented && !inside && line == first_line) blocks.emplace_back();
    if (indented && !inside) inside = line == first_line;
    if (!indented) inside = false;
    if (inside) absl::StrAppend(&blocks.back(), line, "\n");
  }
  return blocks;
}

TEST(Readme, ItsModelCanBePlanned) {
  std::stringstream text;
  text << std::ifstream("README.md").rdbuf();
  const std::vector<std::string> models = Blocks(text.str(), "model {");
  ASSERT_EQ(models.size(), 1u);
  const auto plan = PlanText(
      absl::StrCat(models[0], "data { batch_size: 8 sequence_length: 16 }"), 2,
      TestTarget(3));
  constexpr int64_t kVocabulary = 256, kWidth = 64, kInner = 192, kBlocks = 4;
  constexpr int64_t kKeys = kWidth / 4 * 2;  // two of four heads
  EXPECT_EQ(plan->training->model->numel(),
            2 * kVocabulary * kWidth + kWidth +
                kBlocks * (2 * kWidth + 2 * kWidth * kWidth +
                           2 * kWidth * kKeys + 3 * kWidth * kInner));
  // A unit per block, as the text below the model says.
  int64_t blocks = 0;
  for (const ShardUnit& unit : plan->training->layout.units())
    blocks += absl::StartsWith(unit.name, "blocks.");
  EXPECT_EQ(blocks, kBlocks);
}

}  // namespace
}  // namespace shardgraph
