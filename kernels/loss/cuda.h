// Launching of cross-entropy on a GPU. Plain structs, for .cu files.
#ifndef KERNELS_LOSS_CUDA_H_
#define KERNELS_LOSS_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph::cuda {

// Rows of logits: their losses; and their gradients in place of them. A target
// outside [0, vocabulary) is masked.
struct CrossEntropyLaunch {
  ElementType type = ElementType::kF32;
  void* logits = nullptr;  // [rows, vocabulary]; 16-byte aligned rows
  int64_t row_stride = 0;
  int64_t rows = 0;
  int64_t vocabulary = 0;
  const int32_t* targets = nullptr;
  float* losses = nullptr;  // 0 where masked
  float label_smoothing = 0;
  float z_loss = 0;
  // Of the gradient; null: losses only, logits are kept.
  const float* loss_scale = nullptr;
  const double* nominal_tokens = nullptr;
};
cudaError_t LaunchCrossEntropy(const CrossEntropyLaunch& launch,
                               cudaStream_t stream);

// stats = (sum of losses, number of targets in [0, vocabulary)): stretches of
// rows are added up in FP64, then the stretches, in order.
cudaError_t LaunchLossStats(const float* losses, const int32_t* targets,
                            int64_t rows, int64_t vocabulary, double* stats,
                            cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_LOSS_CUDA_H_
