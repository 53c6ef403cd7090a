#include "kernels/reference/access.h"

#include <cmath>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(RoundTo, RoundsOnceWhereTwoRoundingsDiffer) {
  // Just above the tie between 1 and the next BF16: rounding to float first
  // would land on the tie and then go down to even.
  const double tie = 1 + std::ldexp(1.0, -8);
  EXPECT_EQ(RoundTo(DType::kBF16, tie), 1.0);
  EXPECT_EQ(RoundTo(DType::kBF16, tie + std::ldexp(1.0, -40)),
            1 + std::ldexp(1.0, -7));
  EXPECT_EQ(RoundTo(DType::kBF16, -tie - std::ldexp(1.0, -40)),
            -1 - std::ldexp(1.0, -7));
  EXPECT_EQ(
      RoundTo(DType::kF16, 1 + std::ldexp(1.0, -11) - std::ldexp(1.0, -45)),
      1.0);
  EXPECT_TRUE(std::isinf(RoundTo(DType::kBF16, 1e39)));
  EXPECT_TRUE(std::isnan(RoundTo(DType::kBF16, NAN)));
}

TEST(Elements, FollowStrides) {
  float data[] = {0, 1, 2, 3, 4, 5, 6, 7};
  const Elements view(Tensor{data, TensorType(DType::kF32, {2, 3}, {5, 1})});
  EXPECT_EQ(view.Get(1, 2), 7);
  EXPECT_EQ(view.GetFlat(3), 5);
  view.Set(9, 0, 1);
  EXPECT_EQ(data[1], 9);
  int64_t scalar = 3;
  EXPECT_EQ(Elements(Tensor{&scalar, TensorType(DType::kI64, {})}).Get(), 3);
}

}  // namespace
}  // namespace shardgraph
