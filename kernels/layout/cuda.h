// Launching of layout kernels on a GPU. Plain structs, for .cu files.
#ifndef KERNELS_LAYOUT_CUDA_H_
#define KERNELS_LAYOUT_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/strides.h"

namespace shardgraph::cuda {

// Every element becomes the low `size` bytes of `bits`.
struct FillLaunch {
  void* y = nullptr;
  ElementRows<1> shape;
  int size = 4;  // bytes of an element: 1, 2, 4 or 8
  uint64_t bits = 0;
  bool vector = false;  // all rows allow 16-byte accesses
};
cudaError_t LaunchFill(const FillLaunch& launch, cudaStream_t stream);

// Rows of [B, T, K, D] into a cache [B, S, K, D] from *position on.
struct KvWriteLaunch {
  void* cache = nullptr;
  const void* rows = nullptr;
  const int64_t* position = nullptr;  // device memory
  int size = 4;                       // bytes of an element: 2, 4 or 8
  int64_t batch = 0, length = 0, capacity = 0, heads = 0, width = 0;
  int64_t cache_strides[3] = {};  // of b, t and k, in elements
  int64_t rows_strides[3] = {};
};
cudaError_t LaunchKvWrite(const KvWriteLaunch& launch, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_LAYOUT_CUDA_H_
