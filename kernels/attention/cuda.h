// Launching of the CUDA backend's own attention, for every shape and dtype that
// the op has: FP32, dropout, documents, odd sizes. Plain structs, for .cu
// files.
#ifndef KERNELS_ATTENTION_CUDA_H_
#define KERNELS_ATTENTION_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph::cuda {

inline constexpr int64_t kMaxAttentionWidth = 256;

// [batch, length, heads, width]; strides of the first three, in elements.
struct AttentionTensor {
  void* data = nullptr;
  int64_t strides[3] = {};
};

// kernels/attention/attention.h has the formulas.
struct AttentionLaunch {
  ElementType type = ElementType::kF32;
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, width = 0;
  float scale = 1;
  bool causal = false;
  AttentionTensor q, k, v, out;
  float* lse = nullptr;                // [batch, heads, queries]
  const int64_t* offset = nullptr;     // null: 0
  const int32_t* documents = nullptr;  // [batch, keys]; null: none
  // Dropout where `sequence_ids` [batch] is not null.
  const int64_t* sequence_ids = nullptr;
  const int64_t* run_step = nullptr;
  uint64_t seed = 0, name = 0;
  uint32_t threshold = 0;
  float kept_scale = 1;
};
cudaError_t LaunchAttention(const AttentionLaunch& launch, cudaStream_t stream);

// Two passes, one with a block to some queries (dq) and one with a block to
// some keys (dk and dv): no atomics, the same bits on every run.
struct AttentionGradientLaunch {
  AttentionLaunch forward;
  AttentionTensor dout, dq, dk, dv;
  float* deltas = nullptr;  // workspace [batch, heads, queries]
};
cudaError_t LaunchAttentionGradient(const AttentionGradientLaunch& launch,
                                    cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_ATTENTION_CUDA_H_
