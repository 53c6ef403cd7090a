#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/matmul/column_sum_cuda.h"

namespace shardgraph::cuda {
namespace {

constexpr int kLanes = 32;  // groups of columns of a block
constexpr int kRows = 8;    // rows that a block reads at a time

// Block (tile of columns, chunk of rows). Thread (lane, y) sums rows y, y + 8,
// ... of the chunk; the eight sums are added in order.
template <typename From, typename To>
__global__ __launch_bounds__(kLanes* kRows) void ColumnSumKernel(
    const From* __restrict__ x, int64_t row_stride, int64_t rows,
    int64_t rows_per_chunk, int64_t columns, To* __restrict__ y,
    bool accumulate, bool vector) {
  constexpr int kWidth = kGroup<From>;
  __shared__ float partial[kRows][kWidth][kLanes];
  const int lane = static_cast<int>(threadIdx.x);
  const int first_row = static_cast<int>(threadIdx.y);
  const int64_t column =
      (static_cast<int64_t>(blockIdx.x) * kLanes + lane) * kWidth;
  const int64_t left = columns - column;
  const int64_t begin = blockIdx.y * rows_per_chunk;
  const int64_t end =
      begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
  float sum[kWidth] = {};
  if (left > 0) {
#pragma unroll 4
    for (int64_t row = begin + first_row; row < end; row += kRows) {
      float value[kWidth];
      LoadGroup(x + row * row_stride + column, left, vector, value);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] += value[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) partial[first_row][i][lane] = sum[i];
  __syncthreads();
  // Now a thread to a column, not to a group: stores are coalesced.
  for (int i = first_row * kLanes + lane; i < kWidth * kLanes;
       i += kRows * kLanes) {
    const int64_t c = static_cast<int64_t>(blockIdx.x) * kLanes * kWidth + i;
    if (c >= columns) continue;
    float total = 0.0f;
#pragma unroll
    for (int r = 0; r < kRows; ++r) total += partial[r][i % kWidth][i / kWidth];
    To* const out = y + blockIdx.y * columns + c;
    if (accumulate) total += ToFloat(*out);
    *out = FromFloat<To>(total);
  }
}

template <typename From, typename To>
cudaError_t Enqueue(const From* x, int64_t row_stride, int64_t rows,
                    int64_t chunks, int64_t columns, To* y, bool accumulate,
                    cudaStream_t stream) {
  constexpr int kTile = kLanes * kGroup<From>;
  const bool vector = reinterpret_cast<uintptr_t>(x) % 16 == 0 &&
                      row_stride % kGroup<From> == 0;
  const dim3 grid(static_cast<unsigned>((columns + kTile - 1) / kTile),
                  static_cast<unsigned>(chunks));
  return Launch(ColumnSumKernel<From, To>, grid, dim3(kLanes, kRows), 0, stream,
                x, row_stride, rows, (rows + chunks - 1) / chunks, columns, y,
                accumulate, vector);
}

}  // namespace

cudaError_t LaunchColumnSum(const ColumnSumLaunch& launch,
                            cudaStream_t stream) {
  if (launch.columns == 0) return cudaSuccess;
  return DispatchElement(
      launch.x_type, [&]<typename From>(std::type_identity<From>) {
        const From* const x = static_cast<const From*>(launch.x);
        return DispatchElement(
            launch.y_type, [&]<typename To>(std::type_identity<To>) {
              To* const y = static_cast<To*>(launch.y);
              const int64_t chunks = ColumnSumChunks(launch.rows);
              if (chunks == 1) {
                return Enqueue(x, launch.row_stride, launch.rows, 1,
                               launch.columns, y, launch.accumulate, stream);
              }
              float* const partial = static_cast<float*>(launch.workspace);
              const cudaError_t error =
                  Enqueue(x, launch.row_stride, launch.rows, chunks,
                          launch.columns, partial, false, stream);
              if (error != cudaSuccess) return error;
              return Enqueue(partial, launch.columns, chunks, 1, launch.columns,
                             y, launch.accumulate, stream);
            });
      });
}

}  // namespace shardgraph::cuda
