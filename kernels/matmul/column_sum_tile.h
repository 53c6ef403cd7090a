// Sums over the rows of a matrix, compiled for each CPU target.
//
// Plain structs only (kernels/cpu/target.h says why). The routine to call is in
// kernels/matmul/column_sum.h.
#ifndef KERNELS_MATMUL_COLUMN_SUM_TILE_H_
#define KERNELS_MATMUL_COLUMN_SUM_TILE_H_

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph {

// y[c] = sum over n of x[n, c] (+ y[c]), in FP32, rounded once.
struct ColumnSum {
  const void* x = nullptr;  // [rows, columns]
  ElementType x_type = ElementType::kF32;
  int64_t row_stride = 0;  // in elements
  int64_t rows = 0;
  int64_t columns = 0;
  void* y = nullptr;  // [columns]
  ElementType y_type = ElementType::kF32;
  bool accumulate = false;
};

// Columns of one call, at most.
inline constexpr int64_t kColumnSumWidth = 128;

// For columns [begin, end). F16: baseline target alone.
using ColumnSumFunction = void(const ColumnSum& sum, int64_t begin,
                               int64_t end);

namespace baseline {
ColumnSumFunction SumColumns;
}
namespace avx2 {
ColumnSumFunction SumColumns;
}
namespace avx512 {
ColumnSumFunction SumColumns;
}

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_COLUMN_SUM_TILE_H_
