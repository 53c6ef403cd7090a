#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/signals.h"

namespace shardgraph::cuda {
namespace {

__global__ void MarkKernel(int64_t* where, int64_t value) {
  *where = value;
  __threadfence_system();
}

// One block.
__global__ void AppendKernel(RecordRing* ring,
                             const unsigned long long* __restrict__ from,
                             int64_t words) {
  unsigned long long* const memory =
      reinterpret_cast<unsigned long long*>(ring + 1);
  const unsigned long long number = ring->appended;
  unsigned long long* const slot = memory + number % ring->slots * (words + 1);
  if (threadIdx.x == 0) *slot = 0;
  __threadfence_system();
  __syncthreads();
  for (int64_t i = threadIdx.x; i < words; i += blockDim.x)
    slot[1 + i] = from[i];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    *slot = number + 1;
    ring->appended = number + 1;
    __threadfence_system();
  }
}

}  // namespace

cudaError_t LaunchMark(int64_t* where, int64_t value, cudaStream_t stream) {
  return Launch(MarkKernel, 1, 1, 0, stream, where, value);
}

cudaError_t LaunchAppend(RecordRing* ring, const void* from, int64_t words,
                         cudaStream_t stream) {
  return Launch(AppendKernel, 1, 64, 0, stream, ring,
                static_cast<const unsigned long long*>(from), words);
}

}  // namespace shardgraph::cuda
