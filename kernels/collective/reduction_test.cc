#include "kernels/collective/reduction.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using testing::ElementsAre;

template <typename T>
std::vector<T> Reduce(const std::vector<std::vector<T>>& inputs, DType dtype,
                      ReduceOp op) {
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<T> sum(inputs[0].size());
  void* destination = sum.data();
  Lane lane;
  ReduceInRankOrder(sources, absl::MakeConstSpan(&destination, 1), sum.size(),
                    dtype, op, lane);
  return sum;
}

TEST(ReduceInRankOrderTest, AddsFromTheFirstRankOn) {
  // (1e8 + 1) - 1e8 is 0 in FP32, (1e8 - 1e8) + 1 is 1.
  EXPECT_THAT(Reduce<float>({{1e8f, 1e8f}, {1.0f, -1e8f}, {-1e8f, 1.0f}},
                            DType::kF32, ReduceOp::kSum),
              ElementsAre(0.0f, 1.0f));
}

TEST(ReduceInRankOrderTest, NothingIsAddedToOneSource) {
  EXPECT_TRUE(
      std::signbit(Reduce<float>({{-0.0f}}, DType::kF32, ReduceOp::kSum)[0]));
}

TEST(ReduceInRankOrderTest, MaximumKeepsNaN) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value :
       Reduce<double>({{nan, 1, 2}, {3, nan, 4}, {5, 6, nan}}, DType::kF64,
                      ReduceOp::kMax)) {
    EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_THAT(Reduce<int32_t>({{-5, 2}, {-7, 3}}, DType::kI32, ReduceOp::kMax),
              ElementsAre(-5, 3));
}

TEST(ReduceInRankOrderTest, IntegersWrap) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Reduce<int64_t>({{most}, {1}}, DType::kI64, ReduceOp::kSum),
              ElementsAre(std::numeric_limits<int64_t>::min()));
}

TEST(ReduceInRankOrderTest, DestinationsMayBeSources) {
  // More than one block of partial results.
  constexpr int64_t kCount = 5001;
  std::vector<float> a(kCount), b(kCount);
  for (int64_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = static_cast<float>(2 * i);
  }
  const std::vector<const void*> sources = {a.data(), b.data()};
  const std::vector<void*> destinations = {a.data(), b.data()};
  Lane lane;
  ReduceInRankOrder(sources, destinations, kCount, DType::kF32, ReduceOp::kSum,
                    lane);
  for (int64_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(a[i], 3.0f * i);
    ASSERT_EQ(b[i], 3.0f * i);
  }
}

TEST(ReduceInRankOrderTest, ReducibleTypes) {
  EXPECT_TRUE(IsReducible(DType::kF32));
  EXPECT_TRUE(IsReducible(DType::kI64));
  EXPECT_FALSE(IsReducible(DType::kBF16));
  EXPECT_FALSE(IsReducible(DType::kU8));
}

}  // namespace
}  // namespace shardgraph
