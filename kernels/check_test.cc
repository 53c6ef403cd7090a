#include "kernels/check.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

enum class Color : int8_t { kRed = 1, kBlue = 2 };

TEST(CheckTest, HoldsSilently) {
  SG_CHECK(true) << "never printed";
  SG_CHECK_EQ(1, 1);
  SG_CHECK_NE(1, 2);
  SG_CHECK_LT(1, 2);
  SG_CHECK_LE(2, 2);
  SG_CHECK_GT(2, 1);
  SG_CHECK_GE(2, 2);
  SG_CHECK_EQ(Color::kRed, Color::kRed);
}

TEST(CheckTest, OperandsAndMessageAreEvaluatedOnceAndOnlyWhenNeeded) {
  int operands = 0;
  int messages = 0;
  SG_CHECK_EQ(++operands, 1) << ++messages;
  SG_CHECK(++operands == 2) << ++messages;
  EXPECT_EQ(operands, 2);
  EXPECT_EQ(messages, 0);
}

TEST(CheckTest, IsOneStatement) {
  bool other = false;
  if (false)
    SG_CHECK(false) << "not reached";
  else
    other = true;
  EXPECT_TRUE(other);
}

TEST(CheckDeathTest, NamesFileConditionAndMessage) {
  EXPECT_DEATH(SG_CHECK(1 > 2) << "unit " << 7,
               "check_test.cc:[0-9]+: check failed: 1 > 2 unit 7");
}

TEST(CheckDeathTest, ComparisonsPrintBothOperands) {
  const int size = 3;
  EXPECT_DEATH(SG_CHECK_EQ(size, 4) << "of shard",
               "size == 4 \\(3 vs. 4\\) of shard");
  EXPECT_DEATH(SG_CHECK_LT(size, 3), "size < 3 \\(3 vs. 3\\)");
  EXPECT_DEATH(SG_CHECK_EQ(Color::kRed, Color::kBlue), "\\(1 vs. 2\\)");
  EXPECT_DEATH(SG_CHECK_EQ(std::vector<int>{1}, std::vector<int>{}),
               "unprintable");
}

}  // namespace
}  // namespace shardgraph
