#include <cstdint>

#include "kernels/cuda/group.h"
#include "kernels/random/cuda.h"
#include "kernels/random/cuda_random.h"

namespace shardgraph::cuda {
namespace {

constexpr int kThreads = 256;

// Groups begin at multiples of four, as blocks of random numbers do.
template <typename T>
__global__ __launch_bounds__(kThreads) void DropoutKernel(DropoutLaunch a,
                                                          bool vector) {
  constexpr int kWidth = kGroup<T>;
  const int64_t groups = (a.columns + kWidth - 1) / kWidth;
  const int64_t count = a.rows * groups;
  const uint64_t step_of_run = static_cast<uint64_t>(*a.run_step);
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t g = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       g < count; g += step) {
    const int64_t row = g / groups, column = (g - row * groups) * kWidth;
    const int64_t left = a.columns - column;
    const PhiloxKey key = KeyOf(a.seed, a.name, step_of_run,
                                static_cast<uint64_t>(a.sequence_ids[row]));
    const int64_t at = row * a.columns + column;
    float value[kWidth];
    LoadGroup(static_cast<const T*>(a.x) + at, left, vector, value);
#pragma unroll
    for (int i = 0; i < kWidth; i += 4) {
      uint32_t words[4];
      PhiloxWords(key, static_cast<uint64_t>(column + i) / 4, words);
#pragma unroll
      for (int k = 0; k < 4; ++k)
        value[i + k] = words[k] >= a.threshold ? value[i + k] * a.factor : 0.0f;
    }
    StoreGroup(static_cast<T*>(a.y) + at, left, vector, value);
  }
}

}  // namespace

cudaError_t LaunchDropout(const DropoutLaunch& launch, cudaStream_t stream) {
  return DispatchElement(launch.type, [&]<typename T>(std::type_identity<T>) {
    constexpr int kWidth = kGroup<T>;
    const int64_t groups = (launch.columns + kWidth - 1) / kWidth;
    const int64_t count = launch.rows * groups;
    if (count == 0) return cudaSuccess;
    const bool vector = launch.columns % kWidth == 0 &&
                        (reinterpret_cast<uintptr_t>(launch.x) |
                         reinterpret_cast<uintptr_t>(launch.y)) %
                                16 ==
                            0;
    return Launch(DropoutKernel<T>, Blocks(count, kThreads), kThreads, 0,
                  stream, launch, vector);
  });
}

}  // namespace shardgraph::cuda
