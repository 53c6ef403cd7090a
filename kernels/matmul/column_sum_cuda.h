// Sums over the rows of a matrix on a GPU, for kernels to call. Plain structs,
// for .cu files.
//
// The bits of a sum depend on its column and on the number of rows alone.
#ifndef KERNELS_MATMUL_COLUMN_SUM_CUDA_H_
#define KERNELS_MATMUL_COLUMN_SUM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph::cuda {

// y[c] = sum over rows of x[row, c], added to what y holds if `accumulate`.
struct ColumnSumLaunch {
  const void* x = nullptr;
  ElementType x_type = ElementType::kF32;
  int64_t row_stride = 0;  // elements
  int64_t rows = 0;
  int64_t columns = 0;
  void* y = nullptr;
  ElementType y_type = ElementType::kF32;
  bool accumulate = false;
  void* workspace = nullptr;  // ColumnSumWorkspace(rows, columns) bytes
};

// More rows than this are summed in chunks, then over chunks.
inline constexpr int64_t kColumnSumRows = 512;

constexpr int64_t ColumnSumChunks(int64_t rows) {
  constexpr int64_t kChunk = 64;  // rows, until there are 512 chunks
  if (rows <= kColumnSumRows) return 1;
  const int64_t chunks = (rows + kChunk - 1) / kChunk;
  return chunks < kColumnSumRows ? chunks : kColumnSumRows;
}

// Bytes; 0 up to kColumnSumRows rows.
constexpr int64_t ColumnSumWorkspace(int64_t rows, int64_t columns) {
  const int64_t chunks = ColumnSumChunks(rows);
  return chunks == 1 ? 0 : chunks * columns * 4;
}

cudaError_t LaunchColumnSum(const ColumnSumLaunch& launch, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_MATMUL_COLUMN_SUM_CUDA_H_
