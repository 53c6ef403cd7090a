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
// matmul_pointwise(a, b [, bias] [, x]) -> [y,] z
//   y = matmul(a, b [, bias]), z = function(y [, x]): a product and the
//   pointwise op that follows it (kernels/pointwise/pointwise.h), in one pass.
//   For plans to be lowered to; it has no gradient rule.
//   Attributes: transpose_a, transpose_b and bias as above; function, the name
//   of the pointwise op:
//     gelu, silu, relu             z = function(y)
//     gelu_gradient, silu_gradient, relu_gradient
//                                  z = function(y, x): y is the gradient of
//                                  the op's result and x what the op was given
//     add                          z = y + x
//     swiglu                       z = swiglu(y[:, 0 : N/2], y[:, N/2 : N])
//   tanh as in gelu; keep (default 1): 0 where nobody else reads y, which then
//   is no result.
//   x     [M, N], of the dtype of a; strided
//   y     [M, N], of the dtype of a; strided
//   z     [M, N], or [M, N/2] after swiglu; of the dtype of a; strided
//   y is rounded before the function sees it, kept or not, so on one backend
//   the bits are those of matmul followed by the pointwise op. A library's
//   epilogue may differ from that by the rounding of y and the order of sums
//   (kernels/matmul/cuda_gemm.h). No accumulation.
//   Cost: 2 M N K matmul FLOPs, the function's pointwise FLOPs.
//
// matmul_column_sum(a, b) -> y, s
//   y = matmul(a, b) with transpose_a, s = column_sum of a or of b: the
//   gradients of a linear layer's weight and bias in one pass. For plans to be
//   lowered to; it has no gradient rule.
//   a     [K, M]; strided
//   b     [K, N]; strided
//   y     [M, N]; strided; may accumulate
//   s     [M] for sum "a", [N] for sum "b"; may accumulate
//   Attributes: transpose_a, which is 1; sum, "a" or "b"; dtype of y and s
//   (default that of a). a and b have one floating dtype.
//   On one backend the bits are those of the two ops. A library's epilogue may
//   sum in another order (kernels/matmul/cuda_gemm.h).
//   Cost: 2 M N K matmul FLOPs, one per element that is summed.
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
// The operand that an instance of matmul_column_sum sums.
int SummedOperand(const Attributes& attributes);
absl::Span<const KernelDef> MatmulReferenceKernels();  // every floating dtype
absl::Span<const KernelDef> MatmulCpuKernels();        // F32, BF16
absl::Span<const KernelDef> MatmulCudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_MATMUL_H_
