// Attention by cuDNN: which instances it does, the memory it takes, and the one
// place where it is called.
//
// The library's fused kernels are for BF16 without dropout, documents or query
// offset; everything else is for the own kernels. On the CUDA double the
// reference kernels stand in for the library, behind PrepareCudnnAttention.
#ifndef KERNELS_ATTENTION_CUDNN_H_
#define KERNELS_ATTENTION_CUDNN_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention/attention.h"
#include "kernels/kernel.h"

namespace shardgraph {

// How an instance is cut into calls of the library, so that a deterministic
// gradient, which holds a score of 2 bytes for every pair of positions, stays
// within bounds. Forward is one call.
struct CudnnCalls {
  int64_t sequences = 0;  // of each call; they divide the whole
  int64_t kv_heads = 0;   // of each call, with their query heads

  // Scratch memory of one call. Offsets are multiples of 256 bytes.
  int64_t sums = 0;     // F32 [sequences, heads, length], of a gradient
  int64_t dq_sums = 0;  // F32 [sequences, heads, length, width], of a fast one
  int64_t library = 0;  // the library's own
  int64_t library_bytes = 0;  // at least what it asks for on sm_80 and sm_90
  int64_t bytes = 0;
};

// OK where the library has kernels for these types on sm_80 and newer; else
// Unimplemented with the reason. Both ops.
absl::Status CudnnSupports(const Attributes& attributes,
                           absl::Span<const TensorType> operands,
                           absl::Span<const TensorType> results);

CudnnCalls CudnnCallsOf(const AttentionConfig& config, bool gradient);

// Bytes of workspace of the CUDA backend's kernels, whichever it takes.
int64_t AttentionCudaWorkspace(const Attributes& attributes,
                               absl::Span<const TensorType> operands,
                               absl::Span<const TensorType> results);
int64_t AttentionGradientCudaWorkspace(const Attributes& attributes,
                                       absl::Span<const TensorType> operands,
                                       absl::Span<const TensorType> results);

// The kernel for an instance that CudnnSupports, on the current device, whose
// tensors are aligned to 16 bytes. Unimplemented, with the reason, where the
// library refuses all the same or is not there.
absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareCudnnAttention(
    const KernelContext& context);

}  // namespace shardgraph

#endif  // KERNELS_ATTENTION_CUDNN_H_
