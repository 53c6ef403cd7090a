// Attention as cuDNN's operation graph, and the plan that its heuristics choose
// for it: with a handle, for the current device; without one, for a device that
// is only described, so that plans can be made where there is no GPU.
//
// The composite graph, which the library recognises and runs as one fused
// kernel: softmax over masked, scaled scores; its backward pass recomputes the
// probabilities from the statistics. A deterministic gradient writes dq from
// the product itself, a fast one adds parts of it up in F32 first.
#ifndef KERNELS_ATTENTION_CUDNN_GRAPH_H_
#define KERNELS_ATTENTION_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/cudnn.h"

namespace shardgraph::cudnn {

// What a tensor is called when the graph is run.
enum Tensor : int64_t {
  kQuery = 1,
  kKey,
  kValue,
  kOut,
  kLse,            // F32 [batch, heads, length], from max + log(sum)
  kScale,          // F32, in host memory
  kMinusInfinity,  // likewise
  kOne,            // likewise
  kOutGradient,
  kQueryGradient,
  kKeyGradient,
  kValueGradient,
  kRowSums,    // F32 [batch, heads, length]: scratch of the gradient
  kQuerySums,  // F32 [batch, heads, length, width]: of a fast one, zeros first
};
inline constexpr int kTensors = kQuerySums + 1;

// [batch, length, kv_heads, width] rather than [.., heads, ..].
inline bool OfKeys(Tensor name) {
  return name == kKey || name == kValue || name == kKeyGradient ||
         name == kValueGradient;
}

struct Shape {
  int64_t batch = 1, heads = 1, kv_heads = 1, length = 1, width = 64;
  bool causal = true;
  bool gradient = false;
  bool fast = false;
  // In elements, of batch, length and head; by Tensor. Widths are contiguous.
  std::array<std::array<int64_t, 3>, kTensors> strides = {};
  // Of kLse: elements from one sequence to the next.
  int64_t lse_batch_stride = 0;
};

// Where an instance of attention or of attention_gradient has a tensor.
struct Place {
  Tensor name;
  bool result;
  int index;  // of the operand or result
};
absl::Span<const Place> Places(bool gradient);

// Of one of the calls for an instance of these types.
Shape ShapeOf(const AttentionConfig& config, const CudnnCalls& calls,
              absl::Span<const TensorType> operands,
              absl::Span<const TensorType> results);

// Owns a descriptor of the library's.
struct Destroy {
  void operator()(void* descriptor) const {
    cudnnBackendDestroyDescriptor(
        static_cast<cudnnBackendDescriptor_t>(descriptor));
  }
};
using Descriptor = std::unique_ptr<void, Destroy>;

struct Plan {
  Descriptor descriptor;
  std::vector<Descriptor> parts;  // what it refers to
  int64_t workspace = 0;          // bytes
  int64_t engine = 0;
  std::string kernel;  // its name
};

// Unimplemented with the library's reason where it has no plan that takes at
// most `max_workspace` bytes. One of `handle` and `device`, the JSON of a
// device's properties, is empty.
absl::StatusOr<Plan> MakePlan(const Shape& shape, cudnnHandle_t handle,
                              absl::string_view device, int64_t max_workspace);

// OK, or an error with the library's last words.
absl::Status CudnnStatus(cudnnStatus_t status, absl::string_view what);

// Sets `count` values of an attribute.
absl::Status SetAttribute(const Descriptor& descriptor,
                          cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count,
                          const void* values);
absl::StatusOr<Descriptor> MakeDescriptor(cudnnBackendDescriptorType_t type);
absl::Status Finalize(const Descriptor& descriptor, absl::string_view what);

}  // namespace shardgraph::cudnn

#endif  // KERNELS_ATTENTION_CUDNN_GRAPH_H_
