#include "kernels/cpu/vector_math.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/tensor.h"

namespace shardgraph {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(VectorExp, IsWithinTwoUnitsInTheLastPlace) {
  for (int i = -873000; i <= 883000; ++i) {
    const float x = static_cast<float>(i) * 1e-4f;
    const double truth = std::exp(static_cast<double>(x));
    ASSERT_LE(std::abs(VectorExp(x) - truth), 0x1p-22 * truth) << x;
  }
}

TEST(VectorExp, EndsOfTheRange) {
  EXPECT_EQ(VectorExp(0), 1);
  EXPECT_EQ(VectorExp(88.8f), kInfinity);
  EXPECT_EQ(VectorExp(1000), kInfinity);
  EXPECT_EQ(VectorExp(kInfinity), kInfinity);
  EXPECT_EQ(VectorExp(-88), 0);
  EXPECT_EQ(VectorExp(-kInfinity), 0);
  EXPECT_TRUE(std::isnan(VectorExp(kNan)));
}

TEST(StoreFloat, RoundsLikeBFloat16) {
  for (const float value :
       {0.0f, -0.0f, 1.0f, 1.00390625f, 1.01171875f, 3.4e38f, 1e-40f, -2.7f,
        kInfinity, -kInfinity, kNan}) {
    uint16_t bits;
    StoreFloat(value, &bits);
    EXPECT_EQ(bits, BFloat16(value).bits) << value;
    if (!std::isnan(value)) {
      EXPECT_EQ(LoadFloat(bits), static_cast<float>(BFloat16(value)));
    }
  }
}

TEST(VectorMax, PassesOverNansAndEmptyRanges) {
  EXPECT_EQ(VectorMax<float>(nullptr, 0), -kInfinity);
  for (const int n : {1, 15, 16, 17, 50}) {
    for (int top = 0; top < n; ++top) {
      std::vector<float> x(n, -3.0f);
      if (top > 0) x[0] = kNan;
      x[top] = 2.0f;
      EXPECT_EQ(VectorMax(x.data(), n), 2) << n << " " << top;
    }
  }
}

}  // namespace
}  // namespace shardgraph
