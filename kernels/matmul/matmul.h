// Matrix products and column sums.
//
// matmul(a, b [, bias]) -> y
//   y[m, n] = sum over k of A[m, k] B[k, n]  (+ bias[n])
//   a     [M, K], or [K, M] when transpose_a; strided
//   b     [K, N], or [N, K] when transpose_b; strided
//   bias  [N], when attribute bias is 1
//   y     [M, N]; strided; may accumulate
//   Attributes: transpose_a, transpose_b, bias (0 or 1, default 0); dtype of y
//   (default that of a). a, b and bias have one floating dtype.
//   Products are accumulated in FP32 (F64 operands: F64), over k in an order
//   that depends on K alone. y is rounded once, after bias and accumulation:
//   a linear layer's weight gradient in F32 from BF16 operands is
//   matmul(dy, x) with transpose_a and dtype F32. K = 0 gives zeros (plus
//   bias).
//   Cost: 2 M N K matmul FLOPs.
//
// column_sum(x) -> y
//   y[c] = sum over n of x[n, c]: gradients of biases.
//   x     [N, C]; strided
//   y     [C]; may accumulate
//   Attributes: dtype of y (default that of x).
//   Accumulated in FP32 over fixed blocks of rows, then over blocks in order.
//
// A backend may leave results of elements that are not finite unspecified (NaN
// or infinity), never finite.
#ifndef KERNELS_MATMUL_MATMUL_H_
#define KERNELS_MATMUL_MATMUL_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> MatmulOps();
absl::Span<const KernelDef> MatmulReferenceKernels();  // every floating dtype
absl::Span<const KernelDef> MatmulCpuKernels();        // F32, BF16

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_MATMUL_H_
