// Region: the elements that a strided view picks out of a flat range, in the
// order of the view. Says which views are the same, apart, or cover a range.
//
// Offsets and strides count elements. Reshapes of one view are equal regions.
#ifndef GRAPH_REGION_H_
#define GRAPH_REGION_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace shardgraph {

struct Region {
  struct Dim {
    int64_t size;  // at least 2
    int64_t stride;
    friend bool operator==(const Dim&, const Dim&) = default;
  };

  int64_t offset = 0;
  int64_t elements = 0;
  // Outermost first; neighbours that step as one are merged.
  absl::InlinedVector<Dim, 4> dims;

  Region() = default;
  Region(int64_t offset, const TensorType& type);
  // The contiguous range [begin, end).
  static Region Range(int64_t begin, int64_t end);

  bool contiguous() const {
    return dims.empty() || (dims.size() == 1 && dims[0].stride == 1);
  }
  // Whether an element may occur twice.
  bool overlaps_itself() const;
  // One past the last element; offset when empty.
  int64_t end() const;

  friend bool operator==(const Region&, const Region&) = default;
};

// True only when it is proven that no element is in both. Proves what occurs:
// separate ranges, and blocks of one row-major array (columns of a product).
bool Disjoint(const Region& a, const Region& b);

// True only when it is proven that every element of [begin, end) is in one of
// `parts`.
bool Covers(absl::Span<const Region> parts, int64_t begin, int64_t end);
// The same for the elements of `region`.
bool Covers(absl::Span<const Region> parts, const Region& region);

}  // namespace shardgraph

#endif  // GRAPH_REGION_H_
