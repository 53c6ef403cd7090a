#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/signals.h"

namespace shardgraph::cuda {
namespace {

__global__ void MarkKernel(int64_t* where, int64_t value) {
  *where = value;
  __threadfence_system();
}

constexpr int kTakers = 256;

__global__ __launch_bounds__(kTakers) void TakeKernel(
    char* __restrict__ to, const char* __restrict__ slots, int64_t slot_bytes,
    const int64_t* turn, int64_t bytes) {
  const char* const from = slots + (*turn & 1) * slot_bytes;
  const bool aligned = reinterpret_cast<uintptr_t>(to) % 16 == 0;
  const int64_t words = aligned ? bytes / 16 : 0;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kTakers;
  const int64_t first =
      static_cast<int64_t>(blockIdx.x) * kTakers + threadIdx.x;
  for (int64_t i = first; i < words; i += step) {
    // By members, still one load: clang would call memcpy, which the double's
    // checker does not see.
    const uint4 word = reinterpret_cast<const uint4*>(from)[i];
    reinterpret_cast<uint4*>(to)[i] =
        make_uint4(word.x, word.y, word.z, word.w);
  }
  for (int64_t i = words * 16 + first; i < bytes; i += step) to[i] = from[i];
}

__global__ void EndTurnKernel(int64_t* turn, int64_t* taken) {
  const int64_t next = *turn + 1;
  *turn = next;
  *taken = next;
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

cudaError_t LaunchTake(void* to, const void* slots, int64_t slot_bytes,
                       const int64_t* turn, int64_t bytes,
                       cudaStream_t stream) {
  if (bytes == 0) return cudaSuccess;
  constexpr int64_t kBlocks = 128, kPerBlock = kTakers * 16;
  const int64_t blocks =
      std::min(kBlocks, (bytes + kPerBlock - 1) / kPerBlock);
  return Launch(TakeKernel, static_cast<unsigned>(blocks), kTakers, 0, stream,
                static_cast<char*>(to), static_cast<const char*>(slots),
                slot_bytes, turn, bytes);
}

cudaError_t LaunchEndTurn(int64_t* turn, int64_t* taken, cudaStream_t stream) {
  return Launch(EndTurnKernel, 1, 1, 0, stream, turn, taken);
}

cudaError_t LaunchAppend(RecordRing* ring, const void* from, int64_t words,
                         cudaStream_t stream) {
  return Launch(AppendKernel, 1, 64, 0, stream, ring,
                static_cast<const unsigned long long*>(from), words);
}

}  // namespace shardgraph::cuda
