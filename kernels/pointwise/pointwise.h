// Elementwise ops on activations of any shape.
//
// All operands of an op have the same shape and floating dtype unless said
// otherwise; all may be strided; results are contiguous except where marked.
// Arithmetic is FP32 (FP64 for F64), rounded once on store.
//
// add(a, b) -> a + b
//
// gelu(x) -> y, gelu_gradient(dy, x) -> dx
//   Attribute tanh: 1 is x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
//   ("gelu_new"), 0 is x/2 (1 + erf(x / sqrt(2))). Source: Hendrycks, Gimpel,
//   "Gaussian error linear units", 2016.
//
// silu(x) -> x * sigmoid(x), silu_gradient(dy, x) -> dx
//
// relu(x) -> max(x, 0), relu_gradient(dy, x) -> x > 0 ? dy : 0
//   A NaN in x stays NaN.
//
// swiglu(gate, up) -> y
//   y = s * up, s = silu(gate) rounded to the dtype first, as Hugging Face's
//   Llama feed-forward does.
//
// swiglu_gradient(dy, gate, up) -> dgate, dup
//   dgate = dy * up * silu'(gate), dup = dy * s with s rounded as in swiglu.
//   Both results may be strided.
//
// cast(x) -> y
//   Attribute dtype (required). Same shape, rounded once. Can accumulate:
//   y = destination + x, rounded once. The result may be strided: with x's own
//   dtype it is the copy into or out of a strided place.
//
// scale(x, factor F32 scalar) -> x * factor
#ifndef KERNELS_POINTWISE_POINTWISE_H_
#define KERNELS_POINTWISE_POINTWISE_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> PointwiseOps();
absl::Span<const KernelDef> PointwiseReferenceKernels();
absl::Span<const KernelDef> PointwiseCpuKernels();
absl::Span<const KernelDef> PointwiseCudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_POINTWISE_POINTWISE_H_
