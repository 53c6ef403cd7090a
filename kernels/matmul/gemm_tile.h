// One tile of a matrix product on the CPU, compiled for each CPU target.
//
// Plain structs only (kernels/cpu/target.h says why). The routines to call are
// in kernels/matmul/gemm.h.
#ifndef KERNELS_MATMUL_GEMM_TILE_H_
#define KERNELS_MATMUL_GEMM_TILE_H_

#include <cstdint>

namespace shardgraph {

// Strides count elements; one of the two is 1.
struct GemmMatrix {
  const void* data = nullptr;
  bool bf16 = false;  // else FP32
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

// c[m, n] = a[m, k] b[k, n] (+ bias[n]) (+ c[m, n]).
struct GemmProblem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  GemmMatrix a;
  GemmMatrix b;
  const void* bias = nullptr;  // [n] or null
  bool bias_bf16 = false;
  void* c = nullptr;
  bool c_bf16 = false;
  int64_t c_row_stride = 0;
  bool accumulate = false;
};

// Largest tile, and how much of k is packed at a time. An element's sum runs
// over each block of k in order, then over the blocks, whatever the tile.
inline constexpr int64_t kGemmTileRows = 192;
inline constexpr int64_t kGemmTileColumns = 256;
inline constexpr int64_t kGemmDepth = 256;

// Rows [m_begin, m_end), columns [n_begin, n_end) of c. Needs about 450 KiB of
// stack.
using GemmTileFunction = void(const GemmProblem& problem, int64_t m_begin,
                              int64_t m_end, int64_t n_begin, int64_t n_end);

namespace baseline {
GemmTileFunction GemmTile;
}
namespace avx2 {
GemmTileFunction GemmTile;
}
namespace avx512 {
GemmTileFunction GemmTile;
}

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_GEMM_TILE_H_
