// Layer norm and RMS norm over the last dimension, and their gradients.
//
// x has shape [..., C] with at least one dimension; rows are all of them but
// the last, and N is their number. weight and bias have x's dtype.
//
// layer_norm(x, weight[C] [, bias[C]]) -> y, mean[...], rstd[...]
//   Attributes: epsilon (double, required), bias (0 or 1).
//   mean = sum(x) / C, rstd = 1 / sqrt(sum((x - mean)^2) / C + epsilon),
//   y = (x - mean) * rstd * weight + bias.
//   Everything in FP32 from x on; y is rounded once. mean and rstd are F32 (F64
//   when x is F64) and are what the gradient needs besides x.
//
// layer_norm_gradient(dy, x, weight, mean, rstd) -> dx, dweight[C] [, dbias[C]]
//   Attributes: bias; dtype (of dweight and dbias; default weight's). All
//   results can accumulate or be left out.
//   With h = (x - mean) * rstd, g = dy * weight:
//   dx = rstd * (g - sum(g) / C - h * sum(g * h) / C),
//   dweight = sum over rows of dy * h, dbias = sum over rows of dy.
//   In FP32, each result rounded once.
//
// rms_norm(x, weight[C]) -> y, rstd[...]
//   Attribute: epsilon (double, required).
//   rstd = 1 / sqrt(sum(x^2) / C + epsilon); h = x * rstd is rounded to x's
//   dtype, then y = h * weight is rounded: the rounding points of Hugging
//   Face's LlamaRMSNorm.
//
// rms_norm_gradient(dy, x, weight, rstd) -> dx, dweight[C]
//   Attribute: dtype (of dweight; default weight's). Both can accumulate or be
//   left out.
//   With h = x * rstd (not rounded), g = dy * weight:
//   dx = rstd * (g - h * sum(g * h) / C), dweight = sum over rows of dy * h.
//   In FP32, each result rounded once.
//
// add_layer_norm(a, b, weight[C] [, bias[C]]) -> sum, y, mean[...], rstd[...]
// add_rms_norm(a, b, weight[C]) -> sum, y, rstd[...]
//   sum = a + b, rounded, then the norm of sum as above: bit for bit what add
//   and the norm give one after the other (graph/fusion.h makes them of those).
//   a and b are of one type and may be strided.
//
// Sums over rows are taken in an order that depends on N alone. x and dy may be
// strided. C = 0 or N = 0 is legal: weight gradients of no rows are zero.
//
// Sources: Ba, Kiros, Hinton, "Layer normalization", 2016; Zhang, Sennrich,
// "Root mean square layer normalization", 2019.
#ifndef KERNELS_NORM_NORM_H_
#define KERNELS_NORM_NORM_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> NormOps();
absl::Span<const KernelDef> NormReferenceKernels();
absl::Span<const KernelDef> NormCpuKernels();
absl::Span<const KernelDef> NormCudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_NORM_NORM_H_
