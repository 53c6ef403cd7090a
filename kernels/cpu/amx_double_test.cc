#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/amx.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

uint16_t Bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits >> 16;  // of values that have no more bits
}

// Tiles 0 (sums), 1 (a) and 2 (b) of full size; b's rows are pairs of k.
class AmxDoubleTest : public ::testing::Test {
 protected:
  AmxDoubleTest() {
    TileConfig config;
    for (int t = 0; t < 3; ++t) {
      config.rows[t] = 16;
      config.column_bytes[t] = 64;
    }
    ConfigureTiles(config);
  }
  ~AmxDoubleTest() override { ReleaseTiles(); }

  // sums + a b for element (0, 0), given the first row of a and the first
  // column of b; k = 32.
  float Element(float sum, const std::vector<float>& a,
                const std::vector<float>& b) {
    float sums[16][16] = {};
    uint16_t rows_a[16][32] = {}, rows_b[16][32] = {};
    sums[0][0] = sum;
    for (size_t k = 0; k < a.size(); ++k) {
      rows_a[0][k] = Bf16(a[k]);
      rows_b[k / 2][k % 2] = Bf16(b[k]);
    }
    LoadTile<0>(sums, 64);
    LoadTile<1>(rows_a, 64);
    LoadTile<2>(rows_b, 64);
    MultiplyTiles<0, 1, 2>();
    StoreTile<0>(sums, 64);
    return sums[0][0];
  }
};

TEST_F(AmxDoubleTest, MultipliesMatrices) {
  uint16_t a[16][32], b[16][32];
  float sums[16][20];  // rows 80 bytes apart
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 32; ++k) {
      a[i][k] = Bf16((i * 3 + k) % 7 - 3);
      b[k / 2][2 * i + k % 2] = Bf16((i + k * 5) % 9 - 4);
    }
    for (int j = 0; j < 20; ++j) sums[i][j] = i - j;
  }
  LoadTile<0>(sums, 80);
  LoadTile<1>(a, 64);
  LoadTile<2>(b, 64);
  MultiplyTiles<0, 1, 2>();
  StoreTile<0>(sums, 80);
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 20; ++j) {
      float expected = i - j;
      for (int k = 0; k < 32 && j < 16; ++k)
        expected += ((i * 3 + k) % 7 - 3) * ((j + k * 5) % 9 - 4);
      ASSERT_EQ(sums[i][j], expected) << i << "," << j;
    }
  }
  ZeroTile<0>();
  StoreTile<0>(sums, 80);
  EXPECT_EQ(sums[15][15], 0);
  EXPECT_EQ(sums[15][16], -1);
}

// Even and odd elements have sums of their own, joined before the tile's sum is
// added.
TEST_F(AmxDoubleTest, RoundsInTheOrderOfTheInstruction) {
  const float large = 0x1p24f;
  // Even: large + 1 = large (a tie to even). Odd: 1.
  EXPECT_EQ(Element(0, {large, 1, 1}, {1, 1, 1}), large);
  // Even: large; odd: 1 + 1. In the order of k it would be large.
  EXPECT_EQ(Element(0, {large, 1, 0, 1}, {1, 1, 0, 1}), large + 2);
  // The tile's sum comes last: added first it would have swallowed both ones.
  EXPECT_EQ(Element(large, {1, 1}, {1, 1}), large + 2);
}

TEST_F(AmxDoubleTest, FlushesSubnormals) {
  const float smallest = 0x1p-126f;
  const float subnormal = 0x1p-127f;
  EXPECT_EQ(Element(0, {subnormal}, {1}), 0);
  EXPECT_EQ(Element(0, {subnormal}, {0x1p10f}), 0);  // an operand is a zero
  EXPECT_EQ(Element(0, {0x1p-100f}, {0x1p-27f}), 0);
  EXPECT_EQ(Element(0, {0x1p-100f}, {0x1p-26f}), smallest);
  EXPECT_EQ(Element(subnormal, {0}, {0}), 0);
  // A product below the normal range is not flushed before it is added.
  EXPECT_EQ(Element(0, {1.5f * 0x1p-126f, 0, -0x1p-100f}, {1, 0, 0x1p-27f}),
            smallest);
  EXPECT_FALSE(std::signbit(Element(-0.0f, {-1}, {0})));
}

TEST_F(AmxDoubleTest, InfinityAndNaN) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Element(0, {infinity}, {2}), infinity);
  EXPECT_EQ(Element(0, {0x1p127f}, {2}), infinity);
  EXPECT_TRUE(std::isnan(Element(0, {infinity}, {0})));
  EXPECT_TRUE(std::isnan(Element(-infinity, {infinity}, {1})));
}

TEST(AmxDoubleDeathTest, RefusesWhatTheProcessorRefuses) {
  ReleaseTiles();
  EXPECT_DEATH(ZeroTile<0>(), "");
  TileConfig config;
  config.rows[0] = 17;
  config.column_bytes[0] = 64;
  EXPECT_DEATH(ConfigureTiles(config), "");
  config.rows[0] = 16;
  ConfigureTiles(config);
  EXPECT_DEATH(ZeroTile<1>(), "");
  config.rows[1] = 8;
  config.column_bytes[1] = 64;
  ConfigureTiles(config);
  EXPECT_DEATH((MultiplyTiles<0, 0, 1>()), "");
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET
