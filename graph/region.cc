#include "graph/region.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

namespace shardgraph {
namespace {

// A block of a row-major array: per dimension of the grid the interval [first,
// first + size).
struct Interval {
  int64_t first = 0;
  int64_t size = 1;
};

struct Grid {
  int64_t origin = 0;
  std::vector<int64_t> strides;  // descending, each a multiple of the next
};

// A grid for all of `regions`. False when their strides make none.
bool MakeGrid(absl::Span<const Region* const> regions, Grid* grid) {
  std::vector<int64_t>& strides = grid->strides;
  strides = {1};
  grid->origin = regions[0]->offset;
  for (const Region* region : regions) {
    grid->origin = std::min(grid->origin, region->offset);
    for (const Region::Dim& dim : region->dims) strides.push_back(dim.stride);
  }
  std::sort(strides.begin(), strides.end(), std::greater<int64_t>());
  strides.erase(std::unique(strides.begin(), strides.end()), strides.end());
  for (size_t k = 1; k < strides.size(); ++k)
    if (strides[k] <= 0 || strides[k - 1] % strides[k] != 0) return false;
  return true;
}

// `region` in the coordinates of the grid. False when it is no block of it.
bool ToBlock(const Region& region, const Grid& grid,
             std::vector<Interval>* block) {
  const std::vector<int64_t>& strides = grid.strides;
  block->assign(strides.size(), Interval{});
  int64_t rest = region.offset - grid.origin;
  for (size_t k = 0; k < strides.size(); ++k) {
    (*block)[k].first = rest / strides[k];
    rest %= strides[k];
  }
  for (const Region::Dim& dim : region.dims) {
    size_t k =
        std::find(strides.begin(), strides.end(), dim.stride) - strides.begin();
    int64_t size = dim.size;
    // A dimension that runs over several steps of the next outer one fills all
    // of them or is no block.
    while (k > 0) {
      const int64_t limit = strides[k - 1] / strides[k];
      Interval& interval = (*block)[k];
      if (interval.size != 1) return false;
      if (interval.first + size <= limit) break;
      if (interval.first != 0 || size % limit != 0) return false;
      interval.size = limit;
      size /= limit;
      --k;
    }
    if ((*block)[k].size != 1) return false;
    (*block)[k].size = size;
  }
  return true;
}

// Elements that two blocks of one grid share.
int64_t InBoth(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  int64_t elements = 1;
  for (size_t k = 0; k < a.size(); ++k) {
    elements *= std::max<int64_t>(
        0, std::min(a[k].first + a[k].size, b[k].first + b[k].size) -
               std::max(a[k].first, b[k].first));
  }
  return elements;
}

}  // namespace

Region::Region(int64_t offset, const TensorType& type)
    : offset(offset), elements(type.num_elements()) {
  if (elements == 0) return;
  for (int i = 0; i < type.rank(); ++i) {
    if (type.shape[i] == 1) continue;
    const Dim dim{type.shape[i], type.strides[i]};
    if (!dims.empty() && dims.back().stride == dim.size * dim.stride) {
      dims.back() = Dim{dims.back().size * dim.size, dim.stride};
    } else {
      dims.push_back(dim);
    }
  }
}

Region Region::Range(int64_t begin, int64_t end) {
  return Region(begin, TensorType(DType::kU8, {end - begin}));
}

bool Region::overlaps_itself() const {
  absl::InlinedVector<Dim, 4> sorted = dims;
  std::sort(sorted.begin(), sorted.end(),
            [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  int64_t span = 1;  // of the dimensions so far
  for (const Dim& dim : sorted) {
    if (dim.stride < span) return true;
    span += (dim.size - 1) * dim.stride;
  }
  return false;
}

int64_t Region::end() const {
  if (elements == 0) return offset;
  int64_t end = offset + 1;
  for (const Dim& dim : dims) end += (dim.size - 1) * dim.stride;
  return end;
}

bool Disjoint(const Region& a, const Region& b) {
  if (a.elements == 0 || b.elements == 0) return true;
  if (a.end() <= b.offset || b.end() <= a.offset) return true;
  Grid grid;
  std::vector<Interval> block_a, block_b;
  if (!MakeGrid({&a, &b}, &grid) || !ToBlock(a, grid, &block_a) ||
      !ToBlock(b, grid, &block_b)) {
    return false;
  }
  return InBoth(block_a, block_b) == 0;
}

bool Covers(absl::Span<const Region> parts, int64_t begin, int64_t end) {
  if (begin >= end) return true;
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t inside = 0;  // elements of parts that lie wholly in the range
  for (const Region& part : parts) {
    if (part.elements == 0) continue;
    if (part.contiguous()) ranges.emplace_back(part.offset, part.end());
    if (begin <= part.offset && part.end() <= end) inside += part.elements;
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t reached = begin;
  for (const auto& [first, last] : ranges)
    if (first <= reached) reached = std::max(reached, last);
  if (reached >= end) return true;
  // Strided parts: disjoint ones that count as many elements as the range.
  if (inside != end - begin) return false;
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (!Disjoint(parts[i], parts[j])) return false;
  return true;
}

bool Covers(absl::Span<const Region> parts, const Region& region) {
  if (region.elements == 0) return true;
  std::vector<const Region*> all = {&region};
  for (const Region& part : parts) {
    if (part == region) return true;
    const auto is_same = [&](const Region* other) { return *other == part; };
    if (part.elements > 0 && std::none_of(all.begin(), all.end(), is_same))
      all.push_back(&part);
  }
  if (region.contiguous() && Covers(parts, region.offset, region.end()))
    return true;
  // Disjoint blocks that have as many elements of the region as there are.
  Grid grid;
  if (!MakeGrid(all, &grid)) return false;
  std::vector<std::vector<Interval>> blocks(all.size());
  int64_t covered = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (!ToBlock(*all[i], grid, &blocks[i])) return false;
    if (i == 0) continue;
    covered += InBoth(blocks[i], blocks[0]);
    for (size_t j = 1; j < i; ++j)
      if (InBoth(blocks[i], blocks[j]) > 0) return false;
  }
  return covered == region.elements;
}

}  // namespace shardgraph
