// Matrix products on a GPU: what a product is, and the own kernel for it. Plain
// structs, for .cu files. Kernels call CudaGemm (cuda_gemm.h), which takes
// cuBLASLt where that can do it.
#ifndef KERNELS_MATMUL_CUDA_H_
#define KERNELS_MATMUL_CUDA_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cpu/element_type.h"
#include "kernels/pointwise/pointwise_run.h"

namespace shardgraph::cuda {

// Element (i, j) is data[i * row_stride + j * column_stride]; one stride is 1.
struct GemmOperand {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
};

struct GemmResult {
  void* data = nullptr;
  int64_t row_stride = 0;
};

// c [m, n] = a [m, k] b [k, n] (+ bias [n]) (+ what c holds).
struct GemmLaunch {
  ElementType type = ElementType::kF32;  // of a, b and bias
  int64_t m = 0, n = 0, k = 0;
  GemmOperand a, b;
  const void* bias = nullptr;  // null: none
  GemmResult c;                // data is null: not kept, with a function only
  ElementType c_type = ElementType::kF32;
  bool accumulate = false;
  // z = function(c [, x]) of c as rounded; all of one type, no accumulation.
  // z is [m, n], [m, n / 2] for kSwiglu.
  bool has_function = false;
  Pointwise function = Pointwise::kAdd;
  GemmOperand x;  // [m, n]
  GemmResult z;
};

// FP32 sums, over k in order: the bits of an element depend on k and the
// operands alone.
cudaError_t LaunchGemm(const GemmLaunch& launch, cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_MATMUL_CUDA_H_
