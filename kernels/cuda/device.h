// Building blocks of kernels: warp and block reductions, 16-byte packs.
// Everything here is device code; sums are in FP32 and in a fixed order, so
// that a reduction gives the same bits on every run.
#ifndef KERNELS_CUDA_DEVICE_H_
#define KERNELS_CUDA_DEVICE_H_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/launch.h"

namespace shardgraph::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;
inline constexpr int kWarpSize = 32;

// N values loaded or stored as one 16-byte access when sizeof is 16.
template <typename T, int N = 16 / static_cast<int>(sizeof(T))>
struct alignas(sizeof(T) * N) Pack {
  T value[N];
};

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float ToFloat(__half x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T FromFloat(float x);
template <>
__device__ __forceinline__ float FromFloat<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromFloat<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half FromFloat<__half>(float x) {
  return __float2half_rn(x);
}

// One 16-byte load through the read-only path. `from` must be 16-byte aligned.
template <typename T>
__device__ __forceinline__ Pack<T> LoadPack(const T* from) {
  static_assert(sizeof(Pack<T>) == sizeof(uint4));
  const uint4 bits = __ldg(reinterpret_cast<const uint4*>(from));
  Pack<T> pack;
  memcpy(&pack, &bits, sizeof(pack));
  return pack;
}

template <typename T>
__device__ __forceinline__ void StorePack(T* to, const Pack<T>& pack) {
  uint4 bits;
  memcpy(&bits, &pack, sizeof(pack));
  *reinterpret_cast<uint4*>(to) = bits;
}

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(kFullWarp, x, offset);
  }
  return x;
}

// Sum over a block of kThreads threads; every thread gets the result. Uses
// shared memory: at least one __syncthreads() between two calls is inside.
template <int kThreads>
__device__ __forceinline__ float BlockSum(float x) {
  static_assert(kThreads % kWarpSize == 0 && kThreads <= 1024);
  constexpr int kWarps = kThreads / kWarpSize;
  x = WarpSum(x);
  if constexpr (kWarps == 1) return x;
  __shared__ float partial[kWarps];
  const int lane = threadIdx.x % kWarpSize;
  if (lane == 0) partial[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  // Every warp reduces the partial sums itself: one barrier less than sending
  // the result back through shared memory.
  x = lane < kWarps ? partial[lane] : 0.0f;
  x = WarpSum(x);
  __syncthreads();  // `partial` may be written again by the next call.
  return x;
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_DEVICE_H_
