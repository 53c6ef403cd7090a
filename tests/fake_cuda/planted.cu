#include "tests/fake_cuda/planted.h"

#include <cuda_bf16.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.h"

namespace shardgraph::fake_cuda {
namespace {

using cuda::DynamicShared;
using cuda::kFullWarp;
using cuda::Launch;

constexpr int kThreads = 256;

__global__ void AffineKernel(float* out, const float* x, float a, const float* b,
                             int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = a * x[i] + *b;
}

__global__ void SgdKernel(float* weight, const float* gradient,
                          const float* rate, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) weight[i] -= *rate * gradient[i];
}

__global__ void ShapedKernel(float* x) {
  if (blockIdx.x + threadIdx.x == 0) x[0] = 1.0f;
}

template <Mistake kMistake>
__global__ void ReverseKernel(float* x, int n) {
  __shared__ float buffer[kThreads];
  const int i = blockIdx.x * kThreads + threadIdx.x;
  buffer[threadIdx.x] = i < n ? x[i] : 0.0f;
  if constexpr (kMistake != Mistake::kMissingBarrier) __syncthreads();
  if (i < n) x[i] = buffer[kThreads - 1 - threadIdx.x];
}

__global__ void WarpReverseKernel(float* x) {
  __shared__ float buffer[kThreads];
  buffer[threadIdx.x] = x[threadIdx.x];
  // __syncwarp() is missing.
  x[threadIdx.x] = buffer[threadIdx.x ^ 31];
}

__global__ void PastEndKernel(float* x, int n, int beyond) {
  if (threadIdx.x == 3) x[n + beyond] = 1.0f;
}

__global__ void ReadPastEndKernel(float* x, int n) {
  if (threadIdx.x == 3) x[0] = x[n];
}

__global__ void ReadUnwrittenKernel(float* x) {
  x[2 * threadIdx.x] = x[2 * threadIdx.x + 1] + 1.0f;
}

template <typename T>
__global__ void SharedUnwrittenKernel(T* x) {
  __shared__ T partial[32];
  if (threadIdx.x % 32 == 0 && threadIdx.x < 64) partial[threadIdx.x / 32] = 1;
  __syncthreads();
  // Reads all 8 warps' values, of which 2 were written.
  if (threadIdx.x < 8) x[threadIdx.x] = partial[threadIdx.x];
}

__global__ void DynamicSharedKernel(float* x, int n) {
  float* buffer = DynamicShared<float>();
  for (int i = threadIdx.x; i <= n; i += kThreads) buffer[i] = x[0];
}

__global__ void MisalignedKernel(float* x) {
  float4* p = reinterpret_cast<float4*>(x + 1);
  if (threadIdx.x == 0) *p = float4{1, 2, 3, 4};
}

__device__ float Recurse(float* x, int depth) {
  float local[64];
  for (int i = 0; i < 64; ++i) local[i] = x[i] * static_cast<float>(depth);
  float sum = depth < 1 << 20 ? Recurse(x, depth + 1) : 0.0f;
  for (int i = 0; i < 64; ++i) sum += local[i] * x[i];
  return sum;
}

__global__ void StackOverflowKernel(float* x) { x[threadIdx.x] = Recurse(x, 0); }

__global__ void EarlyReturnKernel(float* x) {
  if (threadIdx.x >= 128) return;
  __syncthreads();
  x[threadIdx.x] = 1.0f;
}

__global__ void DivergentShuffleKernel(float* x) {
  float v = x[threadIdx.x];
  if (threadIdx.x % 2 == 0) {
    v += __shfl_xor_sync(kFullWarp, v, 2);
  } else {
    __syncthreads();  // The odd lanes wait elsewhere.
  }
  x[threadIdx.x] = v;
}

__global__ void ShuffleInactiveKernel(float* x) {
  if (threadIdx.x < 16) {
    x[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, x[threadIdx.x], 16);
  }
}

__global__ void CollideKernel(float* x) {
  if (threadIdx.x == 0) x[0] = static_cast<float>(blockIdx.x);
}

__global__ void AtomicFloatKernel(float* x, int n) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  if (i > 0 && i < n) atomicAdd(&x[0], x[i]);
}

// Each block writes a partial sum; the last to finish adds them up.
// x: [0] result, [1] counter as bits, [2...] partial sums.
template <bool kFence>
__global__ void LastBlockKernel(float* x) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    x[2 + blockIdx.x] = static_cast<float>(blockIdx.x + 1);
    if constexpr (kFence) __threadfence();
    const unsigned ticket = atomicAdd(reinterpret_cast<unsigned*>(x + 1), 1u);
    last = ticket == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    float sum = 0.0f;
    for (unsigned b = 0; b < gridDim.x; ++b) sum += x[2 + b];
    x[0] = sum;
  }
}

}  // namespace

cudaError_t Affine(float* out, const float* x, float a, const float* b, int n,
                   cudaStream_t stream) {
  return Launch(AffineKernel, (n + kThreads - 1) / kThreads, kThreads, 0, stream,
                out, x, a, b, n);
}

cudaError_t Sgd(float* weight, const float* gradient, const float* rate, int n,
                cudaStream_t stream) {
  return Launch(SgdKernel, (n + kThreads - 1) / kThreads, kThreads, 0, stream,
                weight, gradient, rate, n);
}

cudaError_t RunShaped(float* x, dim3 grid, dim3 block, size_t shared_bytes,
                      cudaStream_t stream) {
  return Launch(ShapedKernel, grid, block, shared_bytes, stream, x);
}

cudaError_t AllowShared(int bytes) {
  return cudaFuncSetAttribute(
      reinterpret_cast<const void*>(&ShapedKernel),
      cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

bool KernelsAreChecked() {
#ifdef FAKE_CUDA_CHECKED
  return true;
#else
  return false;
#endif
}

cudaError_t RunPlanted(Mistake mistake, float* x, int n, int blocks, cudaStream_t stream) {
  switch (mistake) {
    case Mistake::kNone:
      return Launch(ReverseKernel<Mistake::kNone>, blocks, kThreads, 0, stream, x, n);
    case Mistake::kMissingBarrier:
      return Launch(ReverseKernel<Mistake::kMissingBarrier>, blocks, kThreads, 0,
                    stream, x, n);
    case Mistake::kMissingWarpSync:
      return Launch(WarpReverseKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kWritePastEnd:
      return Launch(PastEndKernel, blocks, kThreads, 0, stream, x, n, 0);
    case Mistake::kFarPastEnd:
      return Launch(PastEndKernel, blocks, kThreads, 0, stream, x, n, 1 << 18);
    case Mistake::kReadPastEnd:
      return Launch(ReadPastEndKernel, blocks, kThreads, 0, stream, x, n);
    case Mistake::kReadUnwritten:
      return Launch(ReadUnwrittenKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kSharedUnwritten:
      return Launch(SharedUnwrittenKernel<float>, blocks, kThreads, 0, stream, x);
    case Mistake::kDynamicSharedPastEnd:
      return Launch(DynamicSharedKernel, blocks, kThreads, 300 * sizeof(float),
                    stream, x, 300);
    case Mistake::kMisaligned:
      return Launch(MisalignedKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kStackOverflow:
      return Launch(StackOverflowKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kEarlyReturn:
      return Launch(EarlyReturnKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kDivergentShuffle:
      return Launch(DivergentShuffleKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kShuffleInactive:
      return Launch(ShuffleInactiveKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kBlocksCollide:
      return Launch(CollideKernel, blocks, kThreads, 0, stream, x);
    case Mistake::kHostPointer: {
      static float* const heap = new float[1024]();
      return Launch(ReverseKernel<Mistake::kNone>, blocks, kThreads, 0, stream,
                    heap, n);
    }
    case Mistake::kAtomicFloat:
      return Launch(AtomicFloatKernel, blocks, kThreads, 0, stream, x, n);
    case Mistake::kMissingFence:
      return Launch(LastBlockKernel<false>, blocks, kThreads, 0, stream, x);
    case Mistake::kLastBlock:
      return Launch(LastBlockKernel<true>, blocks, kThreads, 0, stream, x);
  }
  return cudaErrorInvalidValue;
}

}  // namespace shardgraph::fake_cuda
