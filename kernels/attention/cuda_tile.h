// Tiles of rows of a head in shared memory, and which keys a query sees: what
// forward and gradient share. Device code.
//
// Four neighbouring threads work on a row of a tile (a query or a key): lane c
// of them on the rows c, c + 4, ... of the other tile and on the fours of
// elements c, c + 4, ... of the head's width. Tiles are read 16 bytes at a
// time; their rows are filled up to a multiple of four with zeros.
#ifndef KERNELS_ATTENTION_CUDA_TILE_H_
#define KERNELS_ATTENTION_CUDA_TILE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/attention/cuda.h"
#include "kernels/cuda/group.h"
#include "kernels/random/cuda_random.h"

namespace shardgraph::cuda {

inline constexpr int kLanesOfRow = 4;

// Floats from one row of a tile to the next: an odd number of fours, so that
// the same elements of neighbouring rows lie in different banks.
__host__ __device__ __forceinline__ constexpr int TileStride(int64_t width) {
  return 4 * (static_cast<int>((width + 3) / 4) | 1);
}

// Rows of one head.
template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;

  __device__ HeadRows(const AttentionTensor& tensor, int64_t b, int64_t h)
      : data(static_cast<T*>(tensor.data) + b * tensor.strides[0] +
             h * tensor.strides[2]),
        stride(tensor.strides[1]) {}

  // Whether all rows allow 16-byte accesses.
  __device__ bool vector() const {
    return (reinterpret_cast<uintptr_t>(data) | stride * sizeof(T)) % 16 == 0;
  }
};

// Rows [first, first + kRows) into `tile`, zeros from row `count` on. A thread
// to a group of a row.
template <int kRows, typename T>
__device__ __forceinline__ void LoadRows(const HeadRows<T>& head, int64_t first,
                                         int64_t count, int64_t width,
                                         float* tile) {
  constexpr int kWidth = kGroup<std::remove_const_t<T>>;
  const int stride = TileStride(width);
  const int columns = static_cast<int>(width);
  const int groups = (columns + kWidth - 1) / kWidth;
  const bool vector = head.vector();
  for (int e = static_cast<int>(threadIdx.x); e < kRows * groups;
       e += static_cast<int>(blockDim.x)) {
    const int r = e / groups, d = (e - r * groups) * kWidth;
    float values[kWidth];
    LoadGroup(head.data + (first + r) * head.stride + d,
              first + r < count ? columns - d : 0, vector, values);
    float* const to = tile + r * stride + d;
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      if (d + i < columns) {
        *reinterpret_cast<float4*>(to + i) = {values[i], values[i + 1],
                                              values[i + 2], values[i + 3]};
      }
    }
  }
}

__device__ __forceinline__ float4 Four(const float* tile) {
  return *reinterpret_cast<const float4*>(tile);
}

// The products of `row` with rows lane, lane + 4, ... of `tile`.
template <int kCount>
__device__ __forceinline__ void Products(const float* row, const float* tile,
                                         int lane, int64_t width,
                                         float (&products)[kCount]) {
  const int stride = TileStride(width);
#pragma unroll
  for (int x = 0; x < kCount; ++x) products[x] = 0.0f;
  for (int d = 0; d < width; d += 4) {
    const float4 a = Four(row + d);
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      const float4 b = Four(tile + (lane + kLanesOfRow * x) * stride + d);
      products[x] += a.x * b.x;
      products[x] += a.y * b.y;
      products[x] += a.z * b.z;
      products[x] += a.w * b.w;
    }
  }
}

// The fours of a row that this lane owns: sums[4 x .. 4 x + 3] are of elements
// 4 (lane + 4 x) and on.
template <int kWidth>
__device__ __forceinline__ void AddScaled(float factor, const float* row,
                                          int lane, int width,
                                          float (&sums)[kWidth]) {
#pragma unroll
  for (int x = 0; x < kWidth; x += 4) {
    const int d = kLanesOfRow * x + 4 * lane;
    if (d >= width) continue;
    const float4 value = Four(row + d);
    sums[x] += factor * value.x;
    sums[x + 1] += factor * value.y;
    sums[x + 2] += factor * value.z;
    sums[x + 3] += factor * value.w;
  }
}

// Rounds and stores them, in row `i`.
template <typename T, int kWidth>
__device__ __forceinline__ void StoreRow(const HeadRows<T>& head, int64_t i,
                                         int lane, int width, float factor,
                                         const float (&sums)[kWidth]) {
  T* const row = head.data + i * head.stride;
  const bool vector = head.vector();
#pragma unroll
  for (int x = 0; x < kWidth; x += 4) {
    const int d = kLanesOfRow * x + 4 * lane;
    if (d >= width) continue;
    const float four[4] = {sums[x] * factor, sums[x + 1] * factor,
                           sums[x + 2] * factor, sums[x + 3] * factor};
    StoreGroup(row + d, width - d, vector, four);
  }
}

// Over the four threads of a row.
__device__ __forceinline__ float RowSum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}
__device__ __forceinline__ float RowMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}
__device__ __forceinline__ unsigned RowOr(unsigned x) {
  x |= __shfl_xor_sync(kFullWarp, x, 1);
  return x | __shfl_xor_sync(kFullWarp, x, 2);
}

// One head of one sequence: who sees whom, and what dropout keeps.
struct HeadMask {
  int64_t queries, keys, offset, index;
  bool causal;
  const int32_t* documents;  // of the sequence
  bool has_dropout;
  PhiloxKey key;
  uint32_t threshold;
  float kept_scale;

  __device__ HeadMask(const AttentionLaunch& a, int64_t b, int64_t h)
      : queries(a.queries),
        keys(a.keys),
        offset(a.offset == nullptr ? 0 : *a.offset),
        index(h),
        causal(a.causal),
        documents(a.documents == nullptr ? nullptr : a.documents + b * a.keys),
        has_dropout(a.sequence_ids != nullptr),
        key{},
        threshold(a.threshold),
        kept_scale(a.kept_scale) {
    if (has_dropout) {
      key = KeyOf(a.seed, a.name, static_cast<uint64_t>(*a.run_step),
                  static_cast<uint64_t>(a.sequence_ids[b]));
    }
  }

  __device__ bool Sees(int64_t i, int64_t j) const {
    if (i >= queries || j >= keys || (causal && j > i + offset)) return false;
    return documents == nullptr || documents[j] == documents[i + offset];
  }
  // What dropout multiplies a probability with.
  __device__ float Kept(int64_t i, int64_t j) const {
    if (!has_dropout) return 1.0f;
    const uint64_t number =
        static_cast<uint64_t>((index * queries + i) * keys + j);
    return PhiloxWord(key, number) >= threshold ? kept_scale : 0.0f;
  }
};

// Tile and head of a block: tiles from the last on, which in causal attention
// have most to do.
struct BlockOfHeads {
  int64_t b, h, first;  // `first` row of the tile

  __device__ BlockOfHeads(int64_t batch, int64_t heads, int64_t rows,
                          int per_tile) {
    const int64_t all = batch * heads;
    const int64_t tiles = (rows + per_tile - 1) / per_tile;
    const int64_t head = blockIdx.x % all;
    first = (tiles - 1 - blockIdx.x / all) * per_tile;
    b = head / heads;
    h = head - b * heads;
  }
};

inline unsigned BlocksOfHeads(int64_t batch, int64_t heads, int64_t rows,
                              int per_tile) {
  return static_cast<unsigned>(batch * heads *
                               ((rows + per_tile - 1) / per_tile));
}

// Blocks that must fit a multiprocessor: more, and values go to memory.
constexpr int MinBlocks(int per_thread) {
  return per_thread > 32 ? 1 : per_thread > 16 ? 2 : 3;
}

// The widest head of kernels with `per_thread` elements to a thread.
constexpr int64_t WidestHead(int per_thread) {
  return per_thread * kLanesOfRow;
}

// Calls f(std::integral_constant) with the number of elements of a head's width
// to a thread: 16, 32 or 64.
template <typename F>
cudaError_t DispatchWidth(int64_t width, F f) {
  if (width <= WidestHead(16)) return f(std::integral_constant<int, 16>());
  if (width <= WidestHead(32)) return f(std::integral_constant<int, 32>());
  return f(std::integral_constant<int, 64>());
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_ATTENTION_CUDA_TILE_H_
