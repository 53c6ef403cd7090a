// Launching of norm kernels on a GPU. Plain structs, for .cu files.
#ifndef KERNELS_NORM_CUDA_H_
#define KERNELS_NORM_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"
#include "kernels/cuda/strides.h"

namespace shardgraph::cuda {

// Norm of x, or of x + b, which is then stored as `sum`.
struct NormLaunch {
  ElementType type = ElementType::kF32;
  bool centered = false;  // layer norm
  Dimensions<2> rows;     // of x and b
  int64_t columns = 0;
  float epsilon = 0;
  const void* x = nullptr;
  const void* b = nullptr;       // null: none
  const void* weight = nullptr;  // [columns]
  const void* bias = nullptr;    // null: none
  void* sum = nullptr;           // contiguous, as y
  void* y = nullptr;
  float* mean = nullptr;  // of layer norm
  float* rstd = nullptr;
  bool vector = false;  // all rows allow 16-byte accesses
};
cudaError_t LaunchNorm(const NormLaunch& launch, cudaStream_t stream);

// Blocks of rows, by their number alone, that sum weight gradients each by
// itself: rows of `partial`, to be added up.
struct NormGradientLaunch {
  ElementType type = ElementType::kF32;
  bool centered = false;
  Dimensions<2> rows;  // of dy and x
  int64_t columns = 0;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* weight = nullptr;
  const float* mean = nullptr;  // of layer norm
  const float* rstd = nullptr;
  void* dx = nullptr;  // contiguous; null: not wanted
  bool accumulate = false;
  // [NormGradientBlocks(rows), sums, columns]: dweight, then dbias, as wanted.
  float* partial = nullptr;
  bool wants_dweight = false;
  bool wants_dbias = false;
  bool vector = false;
};
cudaError_t LaunchNormGradient(const NormGradientLaunch& launch,
                               cudaStream_t stream);

constexpr int64_t NormGradientRows(int64_t rows) {  // of a block
  constexpr int64_t kMostBlocks = 512, kLeastRows = 4;
  const int64_t per_block = (rows + kMostBlocks - 1) / kMostBlocks;
  return per_block > kLeastRows ? per_block : kLeastRows;
}
constexpr int64_t NormGradientBlocks(int64_t rows) {
  return (rows + NormGradientRows(rows) - 1) / NormGradientRows(rows);
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_NORM_CUDA_H_
