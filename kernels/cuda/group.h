// Groups of elements: what a thread of a memory-bound kernel moves at a time,
// in 16-byte accesses where alignment allows.
//
// The same thread gets the same elements either way, so that bits depend on
// neither alignment nor strides. Device code, but for Blocks and the dispatch.
#ifndef KERNELS_CUDA_GROUP_H_
#define KERNELS_CUDA_GROUP_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/element_type.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/strides.h"

namespace shardgraph::cuda {

// Elements of a group: 16 bytes of the narrowest type.
template <typename... T>
inline constexpr int kGroup = 16 / static_cast<int>(std::min({sizeof(T)...}));

// Elements [0, count) of `from`, zeros behind them, up to W. `vector`: `from`
// is aligned to min(16, W * sizeof(T)) bytes.
template <typename T, int W>
__device__ __forceinline__ void LoadGroup(const T* from, int64_t count,
                                          bool vector, float (&to)[W]) {
  if (vector && count >= W) {
    using Word = std::conditional_t<W * sizeof(T) % 16 == 0, uint4, uint2>;
    constexpr int kPerWord = sizeof(Word) / sizeof(T);
#pragma unroll
    for (int w = 0; w < W / kPerWord; ++w) {
      const Word word = reinterpret_cast<const Word*>(from)[w];
      T values[kPerWord];
      memcpy(static_cast<void*>(values), &word, sizeof(word));
#pragma unroll
      for (int i = 0; i < kPerWord; ++i)
        to[w * kPerWord + i] = ToFloat(values[i]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < W; ++i) to[i] = i < count ? ToFloat(from[i]) : 0.0f;
}

// Rounds and stores elements [0, count), at most W.
template <typename T, int W>
__device__ __forceinline__ void StoreGroup(T* to, int64_t count, bool vector,
                                           const float (&from)[W]) {
  if (vector && count >= W) {
    using Word = std::conditional_t<W * sizeof(T) % 16 == 0, uint4, uint2>;
    constexpr int kPerWord = sizeof(Word) / sizeof(T);
#pragma unroll
    for (int w = 0; w < W / kPerWord; ++w) {
      T values[kPerWord];
#pragma unroll
      for (int i = 0; i < kPerWord; ++i)
        values[i] = FromFloat<T>(from[w * kPerWord + i]);
      Word word;
      memcpy(&word, values, sizeof(word));
      // Not an assignment, which nvcc may take apart.
      __stwb(reinterpret_cast<Word*>(to) + w, word);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < W; ++i) {
    if (i < count) to[i] = FromFloat<T>(from[i]);
  }
}

// `x` as it reads back after a store: a declared rounding point.
template <typename T>
__device__ __forceinline__ float Rounded(float x) {
  return ToFloat(FromFloat<T>(x));
}

// Offset of element `index` (row-major) in each tensor.
template <int N>
__device__ __forceinline__ void Offsets(const Dimensions<N>& dimensions,
                                        int64_t index, int64_t (&offsets)[N]) {
#pragma unroll
  for (int t = 0; t < N; ++t) offsets[t] = 0;
#pragma unroll
  for (int d = Dimensions<N>::kMaxRank - 1; d >= 0; --d) {
    if (d >= dimensions.rank) continue;
    int64_t at = index;
    if (d > 0) {
      // 64-bit division takes ten times as long.
      const int64_t size = dimensions.sizes[d];
      const bool narrow = ((index | size) >> 32) == 0;
      const int64_t next =
          narrow ? static_cast<uint32_t>(index) / static_cast<uint32_t>(size)
                 : index / size;
      at = index - next * size;
      index = next;
    }
#pragma unroll
    for (int t = 0; t < N; ++t) offsets[t] += at * dimensions.strides[t][d];
  }
}

// Sums over a block of whole warps, of any number up to 32; every thread gets
// them. The order depends on the number of threads alone.
template <int N>
__device__ __forceinline__ void BlockSums(float (&x)[N]) {
#pragma unroll
  for (int n = 0; n < N; ++n) x[n] = WarpSum(x[n]);
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  if (warps == 1) return;
  __shared__ float partial[N][kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  if (lane == 0) {
#pragma unroll
    for (int n = 0; n < N; ++n) partial[n][warp] = x[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n)
    x[n] = WarpSum(lane < warps ? partial[n][lane] : 0.0f);
  __syncthreads();  // `partial` may be written again by the next call
}

// Blocks of `per_block` for `count` things, each block looping when there are
// more than fill any GPU several times over.
inline unsigned Blocks(int64_t count, int64_t per_block) {
  constexpr int64_t kMost = 8192;
  return static_cast<unsigned>(
      std::min((count + per_block - 1) / per_block, kMost));
}

// Threads for a row of `columns` in groups of `width`: whole warps, at most
// `most`.
inline unsigned ThreadsForRow(int64_t columns, int width, int64_t most = 256) {
  const int64_t groups = (columns + width - 1) / width;
  return static_cast<unsigned>(
      std::clamp((groups + 31) / 32 * 32, int64_t{32}, most));
}

// Calls f(std::type_identity<T>()) with the type of F32 or BF16.
template <typename F>
cudaError_t DispatchElement(ElementType type, F f) {
  switch (type) {
    case ElementType::kF32:
      return f(std::type_identity<float>());
    case ElementType::kBF16:
      return f(std::type_identity<__nv_bfloat16>());
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_GROUP_H_
