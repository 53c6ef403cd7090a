#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vector_probe.h"
#include "kernels/tensor.h"

namespace shardgraph {

namespace avx512_double {  // on code that runs everywhere
VectorProbe Probe();
}

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class VectorTest : public testing::TestWithParam<VectorProbe> {
 protected:
  const VectorProbe probe_ = GetParam();

  template <typename From, typename To = float>
  std::vector<To> Apply(void (*function)(const From*, int64_t, To*),
                        const std::vector<From>& x) {
    std::vector<To> y(x.size());
    function(x.data(), x.size(), y.data());
    return y;
  }
};

std::vector<float> Grid(double low, double high, int n) {
  std::vector<float> x;
  for (int i = 0; i <= n; ++i)
    x.push_back(static_cast<float>(low + (high - low) * i / n));
  return x;
}

TEST_P(VectorTest, ExpIsWithinTwoUnitsInTheLastPlace) {
  const std::vector<float> x = Grid(-87.29, 88.3, 1000003);
  const std::vector<float> y = Apply(probe_.exp, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = std::exp(static_cast<double>(x[i]));
    ASSERT_LE(std::abs(y[i] - truth), 0x1p-22 * truth) << x[i];
  }
}

TEST_P(VectorTest, ExpAtTheEndsOfItsRange) {
  const std::vector<float> y = Apply(
      probe_.exp,
      std::vector<float>{0, 88.8f, 1000, kInfinity, -88, -kInfinity, kNan});
  EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1),
            (std::vector<float>{1, kInfinity, kInfinity, kInfinity, 0, 0}));
  EXPECT_TRUE(std::isnan(y.back()));
}

TEST_P(VectorTest, SigmoidKeepsItsDigitsOnBothSides) {
  const std::vector<float> x = Grid(-87, 87, 100003);
  const std::vector<float> y = Apply(probe_.sigmoid, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = 1 / (1 + std::exp(-static_cast<double>(x[i])));
    ASSERT_NEAR(y[i], truth, 0x1p-21 * truth) << x[i];
  }
  const std::vector<float> ends = Apply(
      probe_.sigmoid, std::vector<float>{-1e30f, -kInfinity, kInfinity, kNan});
  EXPECT_NEAR(ends[0], 0, 1e-38);
  EXPECT_NEAR(ends[1], 0, 1e-38);
  EXPECT_EQ(ends[2], 1);
  EXPECT_TRUE(std::isnan(ends[3]));
}

TEST_P(VectorTest, NormalIsTheDistributionFunction) {
  std::vector<float> x = Grid(-20, 20, 100003);
  x.insert(x.end(), {0, 1e30f, -1e30f, kInfinity, -kInfinity});
  const std::vector<float> y = Apply(probe_.normal, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double truth = std::erfc(x[i] / -std::sqrt(2.0)) / 2;
    ASSERT_NEAR(y[i], truth, 0x1p-22) << x[i];
    if (truth > 1e-6) {
      ASSERT_NEAR(y[i], truth, 0x1p-13 * truth) << x[i];
    }
  }
  EXPECT_TRUE(std::isnan(Apply(probe_.normal, std::vector<float>{kNan})[0]));
}

TEST_P(VectorTest, SquareRootIsExact) {
  const std::vector<float> x = Grid(0, 1000, 10007);
  const std::vector<float> y = Apply(probe_.square_root, x);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], std::sqrt(x[i]));
}

TEST_P(VectorTest, RoundsLikeBFloat16) {
  std::vector<float> x = {0.0f,        -0.0f,      1.0f,   1.00390625f,
                          1.01171875f, 3.4e38f,    1e-40f, -2.7f,
                          kInfinity,   -kInfinity, kNan};
  x.insert(x.end(), x.begin(), x.end() - 1);  // both ways to store
  const std::vector<uint16_t> bits = Apply(probe_.round_bf16, x);
  const std::vector<float> back = Apply(probe_.widen_bf16, bits);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(bits[i], BFloat16(x[i]).bits) << x[i];
    uint16_t scalar;
    StoreFloat(x[i], &scalar);
    EXPECT_EQ(bits[i], scalar) << x[i];
    if (!std::isnan(x[i])) {
      EXPECT_EQ(back[i], static_cast<float>(BFloat16(x[i])));
      EXPECT_EQ(back[i], LoadFloat(bits[i]));
    }
  }
}

TEST_P(VectorTest, SumsDoNotDependOnTheWidth) {
  std::vector<float> x = Grid(-1, 1.3, 1000);
  for (const int64_t n : {0, 1, 7, 15, 16, 17, 100, 1001}) {
    float lanes[16] = {};
    for (int64_t c = 0; c < n; ++c) lanes[c % 16] += x[c];
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    EXPECT_EQ(probe_.sum(x.data(), n), lanes[0]) << n;
  }
}

std::vector<VectorProbe> Probes() {
  std::vector<VectorProbe> probes = {avx512_double::Probe()};
  for (const CpuTarget target : SupportedCpuTargets())
    probes.push_back(
        ForTarget(target, &baseline::Probe, &avx2::Probe, &avx512::Probe)());
  return probes;
}

INSTANTIATE_TEST_SUITE_P(Targets, VectorTest, testing::ValuesIn(Probes()));

TEST(Float16Bits, ConvertsLikeFloat16) {
  for (int bits = 0; bits < 65536; ++bits) {
    Float16 truth;
    truth.bits = static_cast<uint16_t>(bits);
    const float value = LoadFloat(Float16Bits{truth.bits});
    if (std::isnan(static_cast<float>(truth))) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      continue;
    }
    ASSERT_EQ(value, static_cast<float>(truth)) << bits;
    // What lies between this number and the next, ties included.
    for (const float factor :
         {1.0f, 1.000244140625f, 1.0003f, 1.00048828125f}) {
      Float16Bits rounded;
      StoreFloat(value * factor, &rounded);
      ASSERT_EQ(rounded.bits, Float16(value * factor).bits) << value * factor;
    }
  }
  Float16Bits nan;
  StoreFloat(kNan, &nan);
  EXPECT_TRUE(std::isnan(LoadFloat(nan)));
}

}  // namespace
}  // namespace shardgraph
