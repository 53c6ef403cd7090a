// Kernels for F16 by way of F32: operands are cast into workspace, the F32
// kernel of the same backend runs on them there, and results are cast back. A
// backend lists them before its own kernels, which come first where they take
// F16.
//
// Each result is rounded once, when it is stored; further rounding points that
// an op declares inside are kept to FP32 only.
#ifndef KERNELS_WIDENED_H_
#define KERNELS_WIDENED_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace shardgraph {

// A KernelDef's functions for `op`, by kernels of `table`. Unimplemented where
// no tensor is F16 or the table has no F32 kernel.
absl::Status WidenedSupports(const KernelTable& table, absl::string_view op,
                             const Attributes& attributes,
                             absl::Span<const TensorType> operands,
                             absl::Span<const TensorType> results);
int64_t WidenedWorkspace(const KernelTable& table, absl::string_view op,
                         const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         absl::Span<const TensorType> results);
absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareWidened(
    const KernelTable& table, const KernelContext& context);

// The name of an op as a template argument.
template <size_t kSize>
struct OpName {
  char text[kSize];
  constexpr OpName(const char (&name)[kSize]) {  // NOLINT: implicit
    for (size_t i = 0; i < kSize; ++i) text[i] = name[i];
  }
  constexpr absl::string_view name() const { return {text, kSize - 1}; }
};

template <const KernelTable& (*table)(), OpName op>
constexpr KernelDef WidenedKernel() {
  return {.op = op.name(),
          .supports =
              [](const Attributes& attributes,
                 absl::Span<const TensorType> operands,
                 absl::Span<const TensorType> results) {
                return WidenedSupports(table(), op.name(), attributes, operands,
                                       results);
              },
          .workspace =
              [](const Attributes& attributes,
                 absl::Span<const TensorType> operands,
                 absl::Span<const TensorType> results) {
                return WidenedWorkspace(table(), op.name(), attributes,
                                        operands, results);
              },
          .prepare =
              [](const KernelContext& context) {
                return PrepareWidened(table(), context);
              }};
}

// Of every op on activations but casts.
template <const KernelTable& (*table)()>
absl::Span<const KernelDef> WidenedKernels() {
  static constexpr KernelDef kernels[] = {
      WidenedKernel<table, "matmul">(),
      WidenedKernel<table, "matmul_pointwise">(),
      WidenedKernel<table, "matmul_column_sum">(),
      WidenedKernel<table, "column_sum">(),
      WidenedKernel<table, "attention">(),
      WidenedKernel<table, "attention_gradient">(),
      WidenedKernel<table, "layer_norm">(),
      WidenedKernel<table, "layer_norm_gradient">(),
      WidenedKernel<table, "rms_norm">(),
      WidenedKernel<table, "rms_norm_gradient">(),
      WidenedKernel<table, "add_layer_norm">(),
      WidenedKernel<table, "add_rms_norm">(),
      WidenedKernel<table, "embedding">(),
      WidenedKernel<table, "embedding_gradient">(),
      WidenedKernel<table, "rotary">(),
      WidenedKernel<table, "cross_entropy_head">(),
      WidenedKernel<table, "cross_entropy_head_gradient">(),
      WidenedKernel<table, "add">(),
      WidenedKernel<table, "gelu">(),
      WidenedKernel<table, "gelu_gradient">(),
      WidenedKernel<table, "silu">(),
      WidenedKernel<table, "silu_gradient">(),
      WidenedKernel<table, "relu">(),
      WidenedKernel<table, "relu_gradient">(),
      WidenedKernel<table, "swiglu">(),
      WidenedKernel<table, "swiglu_gradient">(),
      WidenedKernel<table, "scale">(),
      WidenedKernel<table, "dropout">(),
  };
  return kernels;
}

}  // namespace shardgraph

#endif  // KERNELS_WIDENED_H_
