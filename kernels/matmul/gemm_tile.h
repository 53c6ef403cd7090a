// Blocks of matrix products on the CPU, compiled for each CPU target.
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

// Rows [m, m + rows), columns [n, n + columns) of a product, to be stored at
// `c`.
struct GemmTile {
  int64_t m = 0;
  int64_t rows = 0;
  int64_t n = 0;
  int64_t columns = 0;
  void* c = nullptr;
  int64_t c_row_stride = 0;
};

// Bounds of a tile, whose sums live on the stack: 1.5 MiB with the rest. A tile
// has at most kGemmMaxRows rows, and rounded up to whole panels at most
// kGemmMaxElements elements, unless it keeps no sums (block_depth).
inline constexpr int64_t kGemmMaxRows = 384;
inline constexpr int64_t kGemmMaxElements = 384 * 256;

// The functions of one target. b is packed in panels: `panel_columns` columns,
// all of k (rounded up to panel_depth) behind each other, `element_bytes` each;
// missing elements are zeros.
struct GemmKernels {
  int64_t panel_rows;  // kGemmMaxRows is a multiple of it
  int64_t panel_columns;
  int64_t panel_depth;
  int64_t element_bytes;
  // Longer tiles are no faster; at most kGemmMaxRows, a multiple of panel_rows.
  int64_t max_rows;
  // Of k at most, so that a tile keeps no sums and may have any number of
  // columns.
  int64_t block_depth;
  // Packs panels from column n on, the last one perhaps in part, 64-byte
  // aligned.
  void (*pack)(const GemmProblem& problem, int64_t n, int64_t columns,
               void* packed);
  // `packed` holds b's panels from tile.n on; null: the tile packs b itself.
  void (*run)(const GemmProblem& problem, const GemmTile& tile,
              const void* packed);
};

// How much of k the FP32 kernels sum at a time: an element's sum runs over each
// block of k in order, then over the blocks, whatever the tile.
inline constexpr int64_t kGemmDepth = 256;

namespace baseline {
extern const GemmKernels kGemmKernels;
}
namespace avx2 {
extern const GemmKernels kGemmKernels;
}
namespace avx512 {
extern const GemmKernels kGemmKernels;
}
namespace avx512_bf16 {  // BF16 operands only
extern const GemmKernels kGemmKernels;
}
namespace amx {  // BF16 operands only
extern const GemmKernels kGemmKernels;
}

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_GEMM_TILE_H_
