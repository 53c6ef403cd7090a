// A product and what goes with it on a GPU, made ready: by cuBLASLt where that
// can, by an own kernel elsewhere.
//
// GELU in its tanh form and its gradient are the library's own epilogues, which
// see the sums before they are rounded; every other function is a second
// kernel over the rounded product. Column sums of an operand are the library's
// too where nothing is added to them, else a second kernel.
#ifndef KERNELS_MATMUL_CUDA_GEMM_H_
#define KERNELS_MATMUL_CUDA_GEMM_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matmul/column_sum_cuda.h"
#include "kernels/matmul/cublaslt.h"
#include "kernels/matmul/cuda.h"
#include "kernels/pointwise/cuda.h"
#include "kernels/tensor.h"

namespace shardgraph::cuda {

// The sums over k of the product's a or b, which is what `launch` sums too; its
// workspace may be the product's own.
struct GemmColumnSum {
  bool of_b = false;
  ColumnSumLaunch launch;
};

class CudaGemm {
 public:
  // On the current device. `workspace`: U8 of any size, aligned to 256 bytes,
  // for the library; nobody else uses it while the product runs. A product that
  // is not kept, and whose function is no epilogue, goes through it some rows
  // at a time. `sum`: null, or for a product without a bias and a function.
  static absl::StatusOr<CudaGemm> Prepare(const GemmLaunch& launch,
                                          const Tensor& workspace,
                                          const GemmColumnSum* sum = nullptr);

  absl::Status Launch(cudaStream_t stream) const;

  // Why an own kernel multiplies; empty where cuBLASLt does.
  const std::string& own_kernel_reason() const { return own_kernel_reason_; }

 private:
  // Some rows.
  struct Part {
    CublasLtMatmul product;
    std::optional<PointwiseLaunch> function;  // behind the product
  };

  CudaGemm() = default;
  // The product with the sums; Unimplemented says that they are apart.
  static absl::StatusOr<std::vector<Part>> WithSum(const GemmLaunch& launch,
                                                   const Tensor& workspace,
                                                   const GemmColumnSum& sum);
  static absl::StatusOr<std::vector<Part>> ByLibrary(const GemmLaunch& launch,
                                                     const Tensor& workspace);
  static absl::StatusOr<std::vector<Part>> ByRows(GemmLaunch launch,
                                                  const Tensor& workspace);

  GemmLaunch launch_;
  std::vector<Part> parts_;
  std::optional<ColumnSumLaunch> sum_;  // behind the product
  std::string own_kernel_reason_;
};

}  // namespace shardgraph::cuda

#endif  // KERNELS_MATMUL_CUDA_GEMM_H_
