// Kernels for F16 by way of F32: operands are cast into workspace, the F32
// kernel of the same backend runs on them there, and results are cast back. A
// backend lists them before its own kernels, which come first where they take
// F16.
//
// Each result is rounded once, when it is stored; further rounding points that
// an op declares inside are kept to FP32 only.
#ifndef KERNELS_WIDENED_H_
#define KERNELS_WIDENED_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/composed.h"
#include "kernels/kernel.h"

namespace shardgraph {

// Unimplemented where no tensor is F16.
absl::StatusOr<Composition> ComposeWidened(
    absl::string_view op, const Attributes& attributes,
    absl::Span<const TensorType> operands,
    absl::Span<const TensorType> results);

// Of every op on activations but casts.
template <const KernelTable& (*table)()>
absl::Span<const KernelDef> WidenedKernels() {
  static constexpr KernelDef kernels[] = {
      ComposedKernel<table, ComposeWidened, "matmul">(),
      ComposedKernel<table, ComposeWidened, "matmul_pointwise">(),
      ComposedKernel<table, ComposeWidened, "matmul_column_sum">(),
      ComposedKernel<table, ComposeWidened, "column_sum">(),
      ComposedKernel<table, ComposeWidened, "attention">(),
      ComposedKernel<table, ComposeWidened, "attention_gradient">(),
      ComposedKernel<table, ComposeWidened, "layer_norm">(),
      ComposedKernel<table, ComposeWidened, "layer_norm_gradient">(),
      ComposedKernel<table, ComposeWidened, "rms_norm">(),
      ComposedKernel<table, ComposeWidened, "rms_norm_gradient">(),
      ComposedKernel<table, ComposeWidened, "add_layer_norm">(),
      ComposedKernel<table, ComposeWidened, "add_rms_norm">(),
      ComposedKernel<table, ComposeWidened, "embedding">(),
      ComposedKernel<table, ComposeWidened, "embedding_gradient">(),
      ComposedKernel<table, ComposeWidened, "rotary">(),
      ComposedKernel<table, ComposeWidened, "cross_entropy_head">(),
      ComposedKernel<table, ComposeWidened, "cross_entropy_head_gradient">(),
      ComposedKernel<table, ComposeWidened, "add">(),
      ComposedKernel<table, ComposeWidened, "gelu">(),
      ComposedKernel<table, ComposeWidened, "gelu_gradient">(),
      ComposedKernel<table, ComposeWidened, "silu">(),
      ComposedKernel<table, ComposeWidened, "silu_gradient">(),
      ComposedKernel<table, ComposeWidened, "relu">(),
      ComposedKernel<table, ComposeWidened, "relu_gradient">(),
      ComposedKernel<table, ComposeWidened, "swiglu">(),
      ComposedKernel<table, ComposeWidened, "swiglu_gradient">(),
      ComposedKernel<table, ComposeWidened, "scale">(),
      ComposedKernel<table, ComposeWidened, "dropout">(),
  };
  return kernels;
}

}  // namespace shardgraph

#endif  // KERNELS_WIDENED_H_
