#include <cstdint>
#include <limits>

#include "kernels/cuda/group.h"
#include "kernels/matmul/cuda.h"
#include "kernels/pointwise/cuda_functions.h"

namespace shardgraph::cuda {
namespace {

// A block computes a tile of c, a thread kRows x kColumns neighbours of it.
constexpr int kTileRows = 64, kTileColumns = 64, kDepth = 16;
constexpr int kRows = 8, kColumns = 4;
constexpr int kThreadColumns = kTileColumns / kColumns;
constexpr int kThreads = kTileRows / kRows * kThreadColumns;
// Rows of tiles in shared memory stay aligned to 16 bytes.
constexpr int kPadding = 4;

// Elements (outer, k) of an operand into tile[k][outer], zeros outside.
// Neighbouring threads read along the stride of 1.
template <typename T, int kOuter, typename OuterOf>
__device__ __forceinline__ void LoadTile(
    const T* data, int64_t outer_stride, int64_t k_stride, OuterOf outer_of,
    int64_t outers, int64_t k0, int64_t depth,
    float (&tile)[kDepth][kOuter + kPadding]) {
  const bool along_k = k_stride == 1;
#pragma unroll
  for (int i = 0; i < kOuter * kDepth / kThreads; ++i) {
    const int e = i * kThreads + static_cast<int>(threadIdx.x);
    const int k = along_k ? e % kDepth : e / kOuter;
    const int o = along_k ? e / kDepth : e % kOuter;
    const int64_t outer = outer_of(o);
    float value = 0.0f;
    if (outer < outers && k0 + k < depth)
      value = ToFloat(data[outer * outer_stride + (k0 + k) * k_stride]);
    tile[k][o] = value;
  }
}

// Neighbouring elements of a tile, in 16-byte accesses.
template <int kCount>
__device__ __forceinline__ void LoadNeighbours(const float* from,
                                               float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    to[i] = four.x;
    to[i + 1] = four.y;
    to[i + 2] = four.z;
    to[i + 3] = four.w;
  }
}

// For kSwiglu the second half of a thread's columns are those n / 2 to the
// right of its first half's, so that it has both of a pair.
template <typename T, typename C, bool kFunction>
__global__ __launch_bounds__(kThreads) void GemmKernel(GemmLaunch g,
                                                       unsigned column_tiles) {
  __shared__ __align__(16) float a_tile[kDepth][kTileRows + kPadding];
  __shared__ __align__(16) float b_tile[kDepth][kTileColumns + kPadding];
  const bool pairs = kFunction && g.function == Pointwise::kSwiglu;
  const int64_t half = g.n / 2;
  const unsigned tile_row = blockIdx.x / column_tiles;
  const int64_t row0 = static_cast<int64_t>(tile_row) * kTileRows;
  const int64_t column0 =
      static_cast<int64_t>(blockIdx.x - tile_row * column_tiles) *
      (pairs ? kTileColumns / 2 : kTileColumns);
  const auto row_of = [=](int i) { return row0 + i; };
  // A column outside is past the last.
  const auto column_of = [=](int j) {
    if (!pairs) return column0 + j;
    constexpr int kHalf = kColumns / 2;
    const int64_t left = column0 + j / kColumns * kHalf + j % kHalf;
    return left >= half ? 2 * half : j % kColumns < kHalf ? left : half + left;
  };
  const int ty = static_cast<int>(threadIdx.x) / kThreadColumns;
  const int tx = static_cast<int>(threadIdx.x) % kThreadColumns;
  // Threads with nothing inside c only help to load.
  const bool computes =
      row_of(ty * kRows) < g.m && column_of(tx * kColumns) < g.n;
  float sum[kRows][kColumns] = {};
  for (int64_t k0 = 0; k0 < g.k; k0 += kDepth) {
    LoadTile<T, kTileRows>(static_cast<const T*>(g.a.data), g.a.row_stride,
                           g.a.column_stride, row_of, g.m, k0, g.k, a_tile);
    LoadTile<T, kTileColumns>(static_cast<const T*>(g.b.data),
                              g.b.column_stride, g.b.row_stride, column_of, g.n,
                              k0, g.k, b_tile);
    __syncthreads();
    if (computes) {
#pragma unroll
      for (int k = 0; k < kDepth; ++k) {
        float a[kRows], b[kColumns];
        LoadNeighbours(&a_tile[k][ty * kRows], a);
        LoadNeighbours(&b_tile[k][tx * kColumns], b);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
#pragma unroll
          for (int j = 0; j < kColumns; ++j) sum[i][j] += a[i] * b[j];
        }
      }
    }
    __syncthreads();
  }
  const T* const bias = static_cast<const T*>(g.bias);
  C* const c = static_cast<C*>(g.c.data);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int64_t column = column_of(tx * kColumns + j);
    const float shift =
        bias != nullptr && column < g.n ? ToFloat(bias[column]) : 0.0f;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = row_of(ty * kRows + i);
      float& value = sum[i][j];
      value += shift;
      if (row >= g.m || column >= g.n || c == nullptr) continue;
      C* const to = c + row * g.c.row_stride + column;
      if (g.accumulate) value += ToFloat(*to);
      *to = FromFloat<C>(value);
    }
  }
  if constexpr (kFunction) {
    const T* const x = static_cast<const T*>(g.x.data);
    T* const z = static_cast<T*>(g.z.data);
    const int64_t columns = pairs ? half : g.n;
    // A row at a time, or the code of all functions stands here for each sum.
#pragma unroll 1
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = row_of(ty * kRows + i);
      if (row >= g.m) break;
      float of_row[kColumns] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {  // an index would put sums into memory
#pragma unroll
        for (int j = 0; j < kColumns; ++j)
          of_row[j] = r == i ? Rounded<T>(sum[r][j]) : of_row[j];
      }
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (pairs && j >= kColumns / 2) continue;
        const int64_t column = column_of(tx * kColumns + j);
        if (column >= columns) continue;
        float other = 0.0f;
        if (pairs) {
          other = of_row[(j + kColumns / 2) % kColumns];
        } else if (x != nullptr) {
          other = ToFloat(x[row * g.x.row_stride + column]);
        }
        z[row * g.z.row_stride + column] =
            FromFloat<T>(PointwiseValue<T>(g.function, of_row[j], other));
      }
    }
  }
}

template <typename T, typename C, bool kFunction>
cudaError_t Enqueue(const GemmLaunch& launch, cudaStream_t stream) {
  const bool pairs = kFunction && launch.function == Pointwise::kSwiglu;
  const int64_t columns = pairs ? launch.n / 2 : launch.n;
  const int64_t width = pairs ? kTileColumns / 2 : kTileColumns;
  if (columns == 0 || launch.m == 0) return cudaSuccess;
  // Tiles in one dimension, row by row: grids are low in the others.
  const int64_t column_tiles = (columns + width - 1) / width;
  const int64_t tiles = column_tiles * ((launch.m + kTileRows - 1) / kTileRows);
  if (tiles > std::numeric_limits<int32_t>::max()) return cudaErrorInvalidValue;
  return Launch(GemmKernel<T, C, kFunction>, static_cast<unsigned>(tiles),
                kThreads, 0, stream, launch,
                static_cast<unsigned>(column_tiles));
}

}  // namespace

cudaError_t LaunchGemm(const GemmLaunch& launch, cudaStream_t stream) {
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    if (launch.has_function) return Enqueue<T, T, true>(launch, stream);
    return DispatchElement(launch.c_type,
                           [&]<typename C>(std::type_identity<C>) {
                             return Enqueue<T, C, false>(launch, stream);
                           });
  });
}

}  // namespace shardgraph::cuda
