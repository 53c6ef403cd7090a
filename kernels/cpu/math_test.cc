#include "kernels/cpu/math.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(FastExp, IsWithinTwoUnitsInTheLastPlace) {
  for (int i = -871000; i <= 887000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double truth = std::exp(static_cast<double>(x));
    ASSERT_LE(std::abs(FastExp(x) - truth), 0x1p-22 * truth) << x;
  }
}

TEST(FastExp, EndsOfTheRange) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(FastExp(0), 1);
  EXPECT_EQ(FastExp(89), inf);
  EXPECT_EQ(FastExp(inf), inf);
  EXPECT_EQ(FastExp(-inf), 0);
  EXPECT_EQ(FastExp(-1000), 0);
  EXPECT_TRUE(std::isnan(FastExp(std::numeric_limits<float>::quiet_NaN())));
  // Subnormal results, to within one of their units.
  for (float x = -103; x < -87.4f; x += 0.125f)
    EXPECT_NEAR(FastExp(x), std::exp(static_cast<double>(x)), 0x1p-148) << x;
}

TEST(FastSigmoid, IsAccurateOnBothSides) {
  for (float x = -80; x <= 80; x += 0.01f) {
    const double truth = 1 / (1 + std::exp(-static_cast<double>(x)));
    ASSERT_LE(std::abs(FastSigmoid(x) - truth), 0x1p-21 * truth) << x;
  }
  EXPECT_EQ(FastSigmoid(-std::numeric_limits<float>::infinity()), 0);
  EXPECT_EQ(FastSigmoid(std::numeric_limits<float>::infinity()), 1);
}

}  // namespace
}  // namespace shardgraph
