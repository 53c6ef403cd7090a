#include "graph/region.h"

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

Region Make(int64_t offset, Dims shape, Dims strides) {
  return Region(offset, TensorType(DType::kF32, shape, strides));
}

std::vector<int64_t> Elements(const Region& region) {
  std::vector<int64_t> elements(region.elements > 0 ? 1 : 0, region.offset);
  for (const Region::Dim& dim : region.dims) {
    std::vector<int64_t> next;
    for (int64_t e : elements)
      for (int64_t i = 0; i < dim.size; ++i) next.push_back(e + i * dim.stride);
    elements = next;
  }
  return elements;
}

TEST(RegionTest, ReshapesAreEqual) {
  // Columns [4, 8) of [6, 12], flat and as [2, 3, 2, 2].
  EXPECT_EQ(Make(4, {6, 4}, {12, 1}), Make(4, {2, 3, 2, 2}, {36, 12, 2, 1}));
  EXPECT_NE(Make(4, {6, 4}, {12, 1}), Make(8, {6, 4}, {12, 1}));
  EXPECT_TRUE(Make(0, {3, 4}, {4, 1}).contiguous());
  EXPECT_EQ(Make(0, {3, 4}, {4, 1}), Region::Range(0, 12));
  EXPECT_FALSE(Make(0, {3, 4}, {5, 1}).contiguous());
  EXPECT_EQ(Make(2, {3, 4}, {5, 1}).end(), 2 + 14);
  // The transposed view holds the same elements in another order.
  EXPECT_NE(Make(0, {4, 3}, {1, 4}), Make(0, {3, 4}, {4, 1}));
}

TEST(RegionTest, ColumnsOfOneProductAreDisjoint) {
  const Region q = Make(0, {6, 4}, {8, 1}), k = Make(4, {6, 2}, {8, 1}),
               v = Make(6, {6, 2}, {8, 1});
  EXPECT_TRUE(Disjoint(q, k));
  EXPECT_TRUE(Disjoint(k, v));
  EXPECT_FALSE(Disjoint(q, Make(3, {6, 2}, {8, 1})));
  EXPECT_FALSE(Disjoint(q, Region::Range(0, 48)));
  EXPECT_TRUE(Covers({q, k, v}, 0, 48));
  EXPECT_FALSE(Covers({q, v}, 0, 48));
  // As many elements as the range, but some twice.
  EXPECT_FALSE(Covers({q, Make(2, {6, 4}, {8, 1})}, 0, 48));
  // A contiguous block of whole rows against columns of other rows.
  EXPECT_TRUE(Disjoint(Region::Range(0, 16), Make(16, {2, 4}, {8, 1})));
}

TEST(RegionTest, ColumnsCoverColumns) {
  const Region q = Make(0, {6, 4}, {8, 1}), k = Make(4, {6, 2}, {8, 1}),
               v = Make(6, {6, 2}, {8, 1});
  EXPECT_TRUE(Covers({q}, q));
  EXPECT_TRUE(Covers({q, k, v}, k));
  EXPECT_TRUE(Covers({q, k}, Make(2, {6, 4}, {8, 1})));
  EXPECT_TRUE(Covers({q, q, k, v}, Region::Range(0, 48)));
  EXPECT_TRUE(Covers({Region::Range(0, 24), Region::Range(24, 48)}, v));
  EXPECT_FALSE(Covers({q, v}, Make(2, {6, 4}, {8, 1})));
  EXPECT_FALSE(Covers({q, v}, k));
  EXPECT_FALSE(Covers({Make(0, {5, 4}, {8, 1})}, q));
}

TEST(RegionTest, ContiguousRangesCover) {
  EXPECT_TRUE(Covers({Region::Range(5, 9), Region::Range(0, 6)}, 0, 9));
  EXPECT_FALSE(Covers({Region::Range(5, 9), Region::Range(0, 4)}, 0, 9));
  EXPECT_TRUE(Covers({Region::Range(0, 100)}, 20, 30));
  EXPECT_TRUE(Covers({}, 3, 3));
  EXPECT_FALSE(Covers({}, 3, 4));
}

TEST(RegionTest, OverlapsItself) {
  EXPECT_FALSE(Make(0, {3, 4}, {4, 1}).overlaps_itself());
  EXPECT_FALSE(Make(0, {4, 3}, {1, 4}).overlaps_itself());
  EXPECT_TRUE(Make(0, {3, 4}, {3, 1}).overlaps_itself());
  EXPECT_TRUE(Make(0, {3, 4}, {0, 1}).overlaps_itself());
  EXPECT_FALSE(Make(0, {1, 4}, {0, 1}).overlaps_itself());
}

TEST(RegionTest, EmptyIsDisjointFromAll) {
  EXPECT_TRUE(Disjoint(Make(0, {0, 4}, {4, 1}), Region::Range(0, 9)));
  EXPECT_EQ(Make(7, {0, 4}, {4, 1}).end(), 7);
}

// A proof must never be wrong.
TEST(RegionTest, ProofsHoldOnRandomViews) {
  std::mt19937 random(1);
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % n);
  };
  int disjoint = 0, covers = 0, columns = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const int64_t row = 1 + pick(8);
    const auto make = [&] {
      const int64_t columns = 1 + pick(row), rows = 1 + pick(4);
      return Make(pick(12), {rows, columns}, {row * (1 + pick(2)), 1});
    };
    const std::vector<Region> r = {make(), make(), make()};
    std::set<int64_t> all, first;
    for (const Region& region : r)
      for (int64_t e : Elements(region)) all.insert(e);
    for (int64_t e : Elements(r[0])) first.insert(e);
    bool common = false;
    for (int64_t e : Elements(r[1])) common |= first.count(e) > 0;
    if (Disjoint(r[0], r[1])) {
      ++disjoint;
      EXPECT_FALSE(common);
    }
    if (Covers({r[1], r[2]}, r[0])) {
      ++columns;
      for (int64_t e : Elements(r[0])) {
        const std::vector<int64_t> one = Elements(r[1]), two = Elements(r[2]);
        EXPECT_GT(std::count(one.begin(), one.end(), e) +
                      std::count(two.begin(), two.end(), e),
                  0);
      }
    }
    const int64_t begin = pick(12), end = begin + pick(12);
    if (Covers(r, begin, end)) {
      ++covers;
      for (int64_t e = begin; e < end; ++e) EXPECT_EQ(all.count(e), 1u);
    }
  }
  EXPECT_GT(disjoint, 1000);
  EXPECT_GT(covers, 100);
  EXPECT_GT(columns, 100);
}

}  // namespace
}  // namespace shardgraph
