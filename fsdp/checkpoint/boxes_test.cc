#include "fsdp/checkpoint/boxes.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(BoxesTest, EveryRangeIsCoveredByTheFewestBoxes) {
  const std::vector<Dims> shapes = {{},     {7},       {3, 5},    {4, 1},
                                    {1, 6}, {2, 3, 4}, {3, 1, 4}, {2, 2, 3, 2}};
  for (const Dims& shape : shapes) {
    const int64_t numel = NumElements(shape);
    for (int64_t begin = 0; begin < numel; ++begin) {
      for (int64_t end = begin + 1; end <= numel; ++end) {
        int64_t at = begin;
        const std::vector<Box> boxes = BoxesOfRange(shape, begin, end - begin);
        EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size()) -
                                    (shape.empty() ? 0 : 1));
        for (const Box& box : boxes) {
          int runs = 0;
          ASSERT_TRUE(ForEachRun(shape, box,
                                 [&](int64_t in_tensor, int64_t in_box,
                                     int64_t elements) {
                                   EXPECT_EQ(in_tensor, at);
                                   EXPECT_EQ(in_box, 0);
                                   EXPECT_EQ(elements, box.numel());
                                   at += elements;
                                   ++runs;
                                   return absl::OkStatus();
                                 })
                          .ok());
          EXPECT_EQ(runs, 1);
        }
        EXPECT_EQ(at, end);
      }
    }
    EXPECT_TRUE(BoxesOfRange(shape, 0, 0).empty());
  }
  EXPECT_EQ(BoxesOfRange({10, 4}, 3, 30).size(), 3u);
  EXPECT_EQ(BoxesOfRange({10, 4}, 4, 30).size(), 2u);
  EXPECT_EQ(BoxesOfRange({10, 4}, 5, 2).size(), 1u);
}

TEST(BoxesTest, RunsOfAnyBox) {
  // Element i of the tensor is i; walk the box by index instead.
  const Dims shape = {3, 4, 5};
  const Box box = {{1, 1, 2}, {2, 3, 2}};
  std::vector<int64_t> expected, runs;
  for (int64_t i = 1; i < 3; ++i)
    for (int64_t j = 1; j < 4; ++j)
      for (int64_t k = 2; k < 4; ++k) expected.push_back((i * 4 + j) * 5 + k);
  ASSERT_TRUE(
      ForEachRun(shape, box, [&](int64_t in_tensor, int64_t in_box, int64_t n) {
        EXPECT_EQ(in_box, static_cast<int64_t>(runs.size()));
        for (int64_t e = 0; e < n; ++e) runs.push_back(in_tensor + e);
        return absl::OkStatus();
      }).ok());
  EXPECT_EQ(runs, expected);
}

}  // namespace
}  // namespace shardgraph
