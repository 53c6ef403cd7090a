// The dimensions of tensors as kernels on a GPU take them: folded where they
// can be, by value, for plain structs of arguments.
#ifndef KERNELS_CUDA_STRIDES_H_
#define KERNELS_CUDA_STRIDES_H_

#include <cstdint>

namespace shardgraph::cuda {

// Dimensions of N tensors of one shape, from the outside in, and the strides of
// each tensor, in elements.
template <int N>
struct Dimensions {
  static constexpr int kMaxRank = 8;

  int rank = 0;
  int64_t count = 1;  // of elements: the product of all sizes
  int64_t sizes[kMaxRank] = {};
  int64_t strides[N][kMaxRank] = {};
};

// Elementwise work: rows of contiguous elements in every tensor.
template <int N>
struct ElementRows {
  Dimensions<N> rows;
  int64_t columns = 1;
};

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_STRIDES_H_
