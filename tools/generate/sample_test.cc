#include "tools/generate/sample.h"

#include <cmath>
#include <set>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(SampleToken, TemperatureZeroTakesTheFirstOfTheMostLikely) {
  EXPECT_EQ(SampleToken({1, 3, 3, -2}, {.temperature = 0}, 0, 0), 1);
}

TEST(SampleToken, DrawsFollowTheSoftmax) {
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f};
  const double temperature = 0.7;
  double sum = 0;
  std::vector<double> expected(3), seen(3);
  for (int i = 0; i < 3; ++i)
    sum += expected[i] = std::exp(logits[i] / temperature);
  const int draws = 20000;
  for (int i = 0; i < draws; ++i)
    seen[SampleToken(logits, {.temperature = temperature}, 0, i)] +=
        1.0 / draws;
  for (int i = 0; i < 3; ++i) {
    const double p = expected[i] / sum;
    EXPECT_NEAR(seen[i], p, 5 * std::sqrt(p * (1 - p) / draws)) << i;
  }
}

TEST(SampleToken, TopKLeavesOutTheRest) {
  std::set<int32_t> seen;
  for (int i = 0; i < 1000; ++i)
    seen.insert(SampleToken({0, 0.1f, 0.2f, 0.3f},
                            {.temperature = 5, .top_k = 2}, 0, i));
  EXPECT_EQ(seen, (std::set<int32_t>{2, 3}));
}

TEST(SampleToken, IsAFunctionOfSeedSampleAndIndex) {
  const std::vector<float> flat(1000, 0.0f);
  EXPECT_EQ(SampleToken(flat, {.seed = 3}, 1, 5),
            SampleToken(flat, {.seed = 3}, 1, 5));
  int equal = 0;
  for (int i = 0; i < 100; ++i)
    equal += SampleToken(flat, {.seed = 3}, 0, i) ==
             SampleToken(flat, {.seed = 3}, 1, i);
  EXPECT_LT(equal, 5);
}

}  // namespace
}  // namespace shardgraph
