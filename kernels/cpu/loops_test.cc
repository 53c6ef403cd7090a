#include "kernels/cpu/loops.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/uneven_pool.h"

namespace shardgraph {
namespace {

// Visits every element once, in both tensors, at the offsets of its strides.
void CheckCovers(const Dims& shape, const Dims& a_strides,
                 const Dims& b_strides) {
  const TensorType a(DType::kF32, shape, a_strides);
  const TensorType b(DType::kF32, shape, b_strides);
  SCOPED_TRACE(a.ToString() + " " + b.ToString());
  const int64_t n = a.num_elements();
  std::vector<int64_t> a_offsets, b_offsets;
  std::vector<int64_t> index(shape.size());
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, at_a = 0, at_b = 0;
    for (int d = a.rank() - 1; d >= 0; --d) {
      at_a += rest % shape[d] * a.strides[d];
      at_b += rest % shape[d] * b.strides[d];
      rest /= shape[d];
    }
    a_offsets.push_back(at_a);
    b_offsets.push_back(at_b);
  }
  std::vector<std::pair<int64_t, int64_t>> seen;
  UnevenPool pool;
  const ElementwiseLoop<2> loop({&a, &b});
  loop.Run(pool, [&](const std::array<int64_t, 2>& offsets, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      seen.emplace_back(offsets[0] + i, offsets[1] + i);
  });
  std::vector<std::pair<int64_t, int64_t>> wanted;
  for (int64_t i = 0; i < n; ++i)
    wanted.emplace_back(a_offsets[i], b_offsets[i]);
  std::sort(seen.begin(), seen.end());
  std::sort(wanted.begin(), wanted.end());
  EXPECT_EQ(seen, wanted);
}

TEST(ElementwiseLoop, CoversEveryElementOnce) {
  CheckCovers({}, {}, {});
  CheckCovers({7}, {1}, {1});
  CheckCovers({0}, {1}, {1});
  CheckCovers({3, 0}, {5, 1}, {0, 1});
  CheckCovers({3, 4}, {4, 1}, {4, 1});
  CheckCovers({3, 4}, {9, 1}, {4, 1});
  CheckCovers({3, 4}, {9, 1}, {7, 1});
  CheckCovers({2, 3, 4, 5}, {60, 20, 5, 1}, {100, 30, 5, 1});
  CheckCovers({2, 3, 4, 5}, {70, 20, 5, 1}, {100, 33, 7, 1});
  CheckCovers({2, 1, 4, 1}, {9, 1000, 2, 1}, {4, 4, 1, 1});
  CheckCovers({50, 1000}, {1001, 1}, {1000, 1});  // several tasks
}

TEST(ElementwiseLoop, FoldsWhatIsContiguousInAllTensors) {
  const TensorType a(DType::kF32, {4, 5, 6});
  const TensorType b(DType::kF32, {4, 5, 6}, {40, 6, 1});
  UnevenPool pool;
  int runs = 0;
  ElementwiseLoop<2>({&a, &a}).Run(pool, [&](const auto&, int64_t count) {
    ++runs;
    EXPECT_EQ(count, 120);
  });
  EXPECT_EQ(runs, 1);
  runs = 0;
  ElementwiseLoop<2>({&a, &b}).Run(pool, [&](const auto&, int64_t count) {
    ++runs;
    EXPECT_EQ(count, 30);
  });
  EXPECT_EQ(runs, 4);
}

}  // namespace
}  // namespace shardgraph
