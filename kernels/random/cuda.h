// Launching of dropout on a GPU. Plain structs, for .cu files.
#ifndef KERNELS_RANDOM_CUDA_H_
#define KERNELS_RANDOM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph::cuda {

struct DropoutLaunch {
  ElementType type = ElementType::kF32;
  const void* x = nullptr;  // [rows, columns]
  void* y = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  uint64_t seed = 0;
  uint64_t name = 0;
  const int64_t* sequence_ids = nullptr;  // [rows]
  const int64_t* run_step = nullptr;
  uint32_t threshold = 0;
  float factor = 1;
};
cudaError_t LaunchDropout(const DropoutLaunch& launch, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_RANDOM_CUDA_H_
