// Kernels with one mistake each, and small honest ones, for stream_test.
#ifndef TESTS_FAKE_CUDA_PLANTED_H_
#define TESTS_FAKE_CUDA_PLANTED_H_

#include <cuda_runtime.h>

namespace shardgraph::fake_cuda {

// out[i] = a * x[i] + *b, where a was an argument and *b lives in memory.
cudaError_t Affine(float* out, const float* x, float a, const float* b, int n,
                   cudaStream_t stream);

// weight[i] -= *rate * gradient[i]; the rate lives in memory.
cudaError_t Sgd(float* weight, const float* gradient, const float* rate, int n,
                cudaStream_t stream);

// Writes x[0], with whatever shape.
cudaError_t RunShaped(float* x, dim3 grid, dim3 block, size_t shared_bytes,
                      cudaStream_t stream);
// Dynamic shared memory that RunShaped may ask for.
cudaError_t AllowShared(int bytes);

// Whether these kernels were compiled for the access checker.
bool KernelsAreChecked();

enum class Mistake {
  kNone,             // Reverses 256 floats within the block, correctly.
  kMissingBarrier,   // Reads another thread's shared value too early.
  kMissingWarpSync,  // The same within a warp.
  kWritePastEnd,     // x[n].
  kReadPastEnd,
  kFarPastEnd,       // 1 MiB past the end.
  kReadUnwritten,    // Reads memory that nobody has written.
  kSharedUnwritten,  // Reads a __shared__ variable that nobody has written.
  kDynamicSharedPastEnd,
  kMisaligned,        // A float4 at a 4-byte aligned address.
  kStackOverflow,     // Recurses without end.
  kEarlyReturn,       // Half of the block never reaches the barrier.
  kDivergentShuffle,  // A shuffle that names lanes which do not take part.
  kShuffleInactive,   // A shuffle from a lane outside the mask.
  kBlocksCollide,     // Two blocks write the same address.
  kHostPointer,       // Dereferences pageable host memory.
  kAtomicFloat,       // Sums by atomicAdd(float): right, but order-dependent.
  kMissingFence,      // Last-block pattern without __threadfence.
  kLastBlock,         // Last-block pattern, correct.
};
// x: n floats. blocks of 256 threads.
cudaError_t RunPlanted(Mistake mistake, float* x, int n, int blocks,
                       cudaStream_t stream);

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_PLANTED_H_
