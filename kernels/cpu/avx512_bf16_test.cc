#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "gtest/gtest.h"
#include "kernels/cpu/avx512_bf16_probe.h"
#include "kernels/cpu/target.h"

namespace shardgraph {
namespace {

struct Numbers {
  float even, odd;
};

// The pair, of numbers that BF16 holds.
uint32_t PairOf(Numbers numbers) {
  const uint32_t even = std::bit_cast<uint32_t>(numbers.even);
  const uint32_t odd = std::bit_cast<uint32_t>(numbers.odd);
  EXPECT_EQ((even | odd) & 0xffffu, 0u);
  return even >> 16 | odd;
}

// One lane of the double; the others hold something else.
float Double(float sum, Numbers a, Numbers b) {
  constexpr int kLane = 5;
  uint32_t pairs_a[16], pairs_b[16];
  float sums[16];
  for (int i = 0; i < 16; ++i) {
    pairs_a[i] = pairs_b[i] = PairOf({1, 2});
    sums[i] = 100;
  }
  pairs_a[kLane] = PairOf(a);
  pairs_b[kLane] = PairOf(b);
  sums[kLane] = sum;
  avx512_bf16_double::DotPairs(pairs_a, pairs_b, sums);
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(i == kLane || sums[i] == 105) << i;
  }
  return sums[kLane];
}

TEST(DotPairs, AddsOddThenEven) {
  const float large = 0x1p24f;
  EXPECT_EQ(Double(3, {2, 5}, {7, 0.5f}), 3 + 14 + 2.5f);
  // 1 is lost beside `large` (a tie to even) where it is added alone.
  EXPECT_EQ(Double(large, {1, 1}, {1, 1}), large);
  EXPECT_EQ(Double(-large, {1, large}, {1, 1}), 1);
  EXPECT_EQ(Double(-2 * large, {2 * large, 1}, {1, 1}), 0);
}

TEST(DotPairs, SubnormalNumbersAreZeros) {
  const float smallest = std::numeric_limits<float>::min();
  EXPECT_EQ(Double(smallest / 2, {0, 0}, {0, 0}), 0);
  EXPECT_EQ(Double(0, {smallest / 2, 0}, {0x1p100f, 0}), 0);
  EXPECT_EQ(Double(0, {smallest, 0}, {0.5f, 0}), 0);
  EXPECT_EQ(Double(0, {smallest, 0}, {1, 0}), smallest);
}

TEST(DotPairs, NumbersThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Double(0, {infinity, 1}, {2, 1}), infinity);
  EXPECT_EQ(Double(0, {0x1p127f, 0}, {4, 0}), infinity);
  EXPECT_TRUE(std::isnan(Double(0, {infinity, 0}, {0, 0})));
  EXPECT_TRUE(std::isnan(Double(0, {infinity, -infinity}, {1, 1})));
}

// Whether the processor has the instructions.
bool HasInstructions() {
  const auto targets = SupportedCpuTargets();
  return std::find(targets.begin(), targets.end(), CpuTarget::kAvx512Bf16) !=
         targets.end();
}

TEST(DotPairs, DoubleIsTheInstruction) {
  if (!HasInstructions()) GTEST_SKIP() << "no AVX-512 BF16 here";
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    // Any bits, or numbers near one another.
    const uint32_t mask = round % 2 == 0 ? 0xffffffffu : 0x80ff80ffu;
    const uint32_t base = round % 2 == 0 ? 0 : 0x3f003f00u;
    uint32_t a[16], b[16];
    float sums[16], expected[16];
    for (int i = 0; i < 16; ++i) {
      a[i] = base | (random() & mask);
      b[i] = base | (random() & mask);
      const uint32_t bits = base | (random() & (mask | 0xffffu));
      sums[i] = std::bit_cast<float>(bits);
      expected[i] = sums[i];
    }
    avx512_bf16_double::DotPairs(a, b, expected);
    avx512_bf16::DotPairs(a, b, sums);
    for (int i = 0; i < 16; ++i) {
      if (std::isnan(expected[i]) && std::isnan(sums[i])) continue;
      ASSERT_EQ(std::bit_cast<uint32_t>(sums[i]),
                std::bit_cast<uint32_t>(expected[i]))
          << std::hex << a[i] << " " << b[i];
    }
  }
}

TEST(Round, ToNearestEvenAndSubnormalNumbersToZero) {
  const float smallest = std::numeric_limits<float>::min();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  float first[16] = {1,        1.00390625f,  -1.01171875f,
                     smallest, smallest / 2, -smallest / 2,
                     3.4e38f,  nan};
  float second[16] = {2};
  uint16_t rounded[32];
  avx512_bf16_double::Round(first, second, rounded);
  const auto widened = [&](int i) {
    return std::bit_cast<float>(static_cast<uint32_t>(rounded[i]) << 16);
  };
  EXPECT_EQ(widened(0), 1);
  EXPECT_EQ(widened(1), 1);           // a tie
  EXPECT_EQ(widened(2), -1.015625f);  // a tie
  EXPECT_EQ(widened(3), smallest);
  EXPECT_EQ(rounded[4], 0);
  EXPECT_EQ(rounded[5], 0x8000);
  EXPECT_TRUE(std::isinf(widened(6)));
  EXPECT_TRUE(std::isnan(widened(7)));
  EXPECT_EQ(widened(16), 2);
}

TEST(Round, DoubleIsTheInstruction) {
  if (!HasInstructions()) GTEST_SKIP() << "no AVX-512 BF16 here";
  std::mt19937 random(7);
  for (int round = 0; round < 20000; ++round) {
    float first[16], second[16];
    for (int i = 0; i < 16; ++i) {
      first[i] = std::bit_cast<float>(static_cast<uint32_t>(random()));
      second[i] = std::bit_cast<float>(static_cast<uint32_t>(random()) &
                                       (round % 2 == 0 ? ~0u : 0x80ffffffu));
    }
    uint16_t rounded[32], expected[32];
    avx512_bf16_double::Round(first, second, expected);
    avx512_bf16::Round(first, second, rounded);
    for (int i = 0; i < 32; ++i) {
      ASSERT_EQ(rounded[i], expected[i])
          << i << " " << (i < 16 ? first[i] : second[i - 16]);
    }
  }
}

}  // namespace
}  // namespace shardgraph
