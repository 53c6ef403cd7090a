// Launching of embedding kernels on a GPU. Plain structs, for .cu files.
#ifndef KERNELS_EMBEDDING_CUDA_H_
#define KERNELS_EMBEDDING_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph::cuda {

// y[n] = weight[ids[n]], or zeros where the id lies outside.
struct EmbeddingLaunch {
  const int32_t* ids = nullptr;
  int64_t count = 0;
  const void* weight = nullptr;
  int64_t rows = 0;
  int64_t row_bytes = 0;  // an even number
  void* y = nullptr;
};
cudaError_t LaunchEmbedding(const EmbeddingLaunch& launch, cudaStream_t stream);

struct EmbeddingGradientLaunch {
  const int32_t* ids = nullptr;
  int64_t count = 0;
  ElementType from = ElementType::kF32;  // of dy
  const void* dy = nullptr;
  int64_t columns = 0;
  int64_t rows = 0;
  ElementType to = ElementType::kF32;  // of dweight
  void* dweight = nullptr;
  bool accumulate = false;
  void* workspace = nullptr;  // EmbeddingGradientWorkspace bytes
};
cudaError_t LaunchEmbeddingGradient(const EmbeddingGradientLaunch& launch,
                                    cudaStream_t stream);
// Where the positions of each row begin [rows + 1], how many have been placed
// [rows], and positions by row [count].
constexpr int64_t EmbeddingGradientWorkspace(int64_t rows, int64_t count) {
  return (rows + 1 + rows + count) * static_cast<int64_t>(sizeof(int32_t));
}

// y[i] = *position + i % length.
cudaError_t LaunchPositions(const int64_t* position, int64_t count,
                            int64_t length, int32_t* y, cudaStream_t stream);

// [batch, length, heads, 2 * half]; strides of the first three dimensions.
struct RotaryLaunch {
  ElementType type = ElementType::kF32;
  int64_t batch = 0, length = 0, heads = 0, half = 0;
  const void* x = nullptr;
  int64_t x_strides[3] = {};
  void* y = nullptr;
  int64_t y_strides[3] = {};
  const int32_t* positions = nullptr;  // [batch * length]
  const float* frequencies = nullptr;  // [half], in device memory
  float sign = 1;                      // -1: the inverse rotation
};
cudaError_t LaunchRotary(const RotaryLaunch& launch, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_EMBEDDING_CUDA_H_
