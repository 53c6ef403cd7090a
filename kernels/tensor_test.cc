#include "kernels/tensor.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(BFloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f808000u)).bits,
            0x3f80);  // tie: to even, down
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f818000u)).bits,
            0x3f82);  // tie: to even, up
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_TRUE(std::isnan(
      static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isinf(
      static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
}

TEST(Float16, EveryValueSurvivesAndNeighboursRound) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    Float16 h;
    h.bits = static_cast<uint16_t>(bits);
    const float f = h;
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(f))));
    } else {
      EXPECT_EQ(Float16(f).bits, bits);
    }
  }
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(std::ldexp(1.0f, -25)).bits, 0);  // tie with zero
  EXPECT_EQ(Float16(std::ldexp(1.5f, -25)).bits, 1);
  EXPECT_EQ(Float16(1.0f + std::ldexp(1.0f, -11)).bits,
            0x3c00);  // tie: to even
  EXPECT_EQ(Float16(1.0f + std::ldexp(3.0f, -11)).bits, 0x3c02);
}

TEST(TensorType, SpansAndContiguity) {
  const TensorType plain(DType::kBF16, {3, 4});
  EXPECT_TRUE(plain.contiguous());
  EXPECT_EQ(plain.span_bytes(), 24);
  const TensorType view(DType::kF32, {3, 4}, {10, 1});
  EXPECT_FALSE(view.contiguous());
  EXPECT_EQ(view.span_bytes(), (2 * 10 + 4) * 4);
  EXPECT_EQ(view.ToString(), "F32[3,4]{10,1}");
  EXPECT_TRUE(TensorType(DType::kF32, {1, 4}, {99, 1}).contiguous());
  EXPECT_EQ(TensorType(DType::kF32, {0, 4}).span_bytes(), 0);
  EXPECT_EQ(TensorType(DType::kF64, {}).span_bytes(), 8);
}

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kU32); ++i) {
    DType back;
    ASSERT_TRUE(ParseDType(DTypeName(static_cast<DType>(i)), &back));
    EXPECT_EQ(static_cast<int>(back), i);
  }
  DType ignored;
  EXPECT_FALSE(ParseDType("F8", &ignored));
}

}  // namespace
}  // namespace shardgraph
