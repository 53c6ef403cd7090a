#include "kernels/random/random.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

// Known answers of Random123, tests/kat_vectors, "philox4x32 10".
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, 0, 0),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
                       0xffffffff, 0xffffffff),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                       0xa4093822, 0x299f31d0),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Published test vectors of FNV-1a, 64 bits.
TEST(HashName, IsFnv1a) {
  EXPECT_EQ(HashName(""), 0xcbf29ce484222325u);
  EXPECT_EQ(HashName("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(HashName("foobar"), 0x85944171f73967e8u);
}

TEST(RandomKey, EveryPartCounts) {
  std::set<uint32_t> words;
  for (uint64_t part = 0; part < 5; ++part) {
    uint64_t v[4] = {0, 0, 0, 0};
    if (part < 4) v[part] = 1;
    words.insert(RandomWord(MakeRandomKey(v[0], v[1], v[2], v[3]), 7));
  }
  EXPECT_EQ(words.size(), 5u);
  // Neither swapping two parts nor moving a bit between them collides.
  EXPECT_NE(MakeRandomKey(1, 2).key, MakeRandomKey(2, 1).key);
  EXPECT_NE(MakeRandomKey(0, 0, 1, 2).stream, MakeRandomKey(0, 0, 2, 1).stream);
}

TEST(RandomWord, UsesAllBitsOfTheIndex) {
  const RandomKey key = MakeRandomKey(1, HashName("w"));
  EXPECT_NE(RandomWord(key, 5), RandomWord(key, 5 + (uint64_t{1} << 34)));
  EXPECT_NE(RandomWord(key, 5), RandomWord(key, 5 + (uint64_t{1} << 62)));
}

// Bounds are six standard deviations of each statistic for n samples.
TEST(RandomUniform, MomentsAndCells) {
  constexpr int n = 1 << 18;
  const RandomKey key = MakeRandomKey(42, HashName("uniform"));
  double sum = 0, squares = 0;
  std::vector<int> cells(64);
  for (int i = 0; i < n; ++i) {
    const double u = RandomUniform(key, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
    ++cells[static_cast<int>(u * 64)];
  }
  EXPECT_NEAR(sum / n, 0.5, 6 * std::sqrt(1.0 / 12 / n));
  EXPECT_NEAR(squares / n, 1.0 / 3, 6 * std::sqrt(4.0 / 45 / n));
  double chi_square = 0;  // 63 degrees of freedom: mean 63, variance 126
  for (const int count : cells) {
    const double expected = n / 64.0;
    chi_square += (count - expected) * (count - expected) / expected;
  }
  EXPECT_LT(chi_square, 63 + 6 * std::sqrt(126.0));
}

TEST(RandomNormal, MomentsAndDistribution) {
  constexpr int n = 1 << 18;
  const RandomKey key = MakeRandomKey(7, HashName("normal"));
  std::vector<double> z(n);
  double moment[5] = {};
  double neighbours = 0;
  for (int i = 0; i < n; ++i) {
    z[i] = RandomNormal(key, i);
    for (int p = 1; p <= 4; ++p) moment[p] += std::pow(z[i], p) / n;
    if (i > 0) neighbours += z[i] * z[i - 1] / n;
  }
  EXPECT_NEAR(moment[1], 0, 6 / std::sqrt(n));
  EXPECT_NEAR(moment[2], 1, 6 * std::sqrt(2.0 / n));
  EXPECT_NEAR(moment[3], 0, 6 * std::sqrt(15.0 / n));
  EXPECT_NEAR(moment[4], 3, 6 * std::sqrt(96.0 / n));
  EXPECT_NEAR(neighbours, 0, 6 / std::sqrt(n));
  // Kolmogorov-Smirnov: P(sqrt(n) D > 2.5) is about 7e-6.
  std::sort(z.begin(), z.end());
  double distance = 0;
  for (int i = 0; i < n; ++i) {
    const double cdf = 0.5 * std::erfc(-z[i] / std::sqrt(2.0));
    distance = std::max({distance, cdf - static_cast<double>(i) / n,
                         static_cast<double>(i + 1) / n - cdf});
  }
  EXPECT_LT(std::sqrt(n) * distance, 2.5);
}

TEST(Dropout, ThresholdIsTheRate) {
  EXPECT_EQ(DropoutThreshold(0), 0u);
  EXPECT_EQ(DropoutThreshold(0.5), 0x80000000u);
  EXPECT_EQ(DropoutThreshold(1), 0xffffffffu);
  constexpr int n = 1 << 16;
  const RandomKey key = MakeRandomKey(3, HashName("drop"), 5, 9);
  int kept = 0;
  for (int i = 0; i < n; ++i)
    kept += DropoutKeeps(key, i, DropoutThreshold(0.1));
  EXPECT_NEAR(static_cast<double>(kept) / n, 0.9, 6 * std::sqrt(0.09 / n));
}

}  // namespace
}  // namespace shardgraph
