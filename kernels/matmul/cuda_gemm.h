// A product and what follows it on a GPU, made ready: by cuBLASLt where that
// can, by an own kernel elsewhere.
//
// GELU in its tanh form and its gradient are the library's own epilogues, which
// see the sums before they are rounded; every other function is a second
// kernel over the rounded product.
#ifndef KERNELS_MATMUL_CUDA_GEMM_H_
#define KERNELS_MATMUL_CUDA_GEMM_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matmul/cublaslt.h"
#include "kernels/matmul/cuda.h"
#include "kernels/pointwise/cuda.h"
#include "kernels/tensor.h"

namespace shardgraph::cuda {

class CudaGemm {
 public:
  // On the current device. `workspace`: U8 of any size, aligned to 256 bytes,
  // for the library; nobody else uses it while the product runs. A product that
  // is not kept, and whose function is no epilogue, goes through it some rows
  // at a time.
  static absl::StatusOr<CudaGemm> Prepare(const GemmLaunch& launch,
                                          const Tensor& workspace);

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
  static absl::StatusOr<std::vector<Part>> ByLibrary(const GemmLaunch& launch,
                                                     const Tensor& workspace);
  static absl::StatusOr<std::vector<Part>> ByRows(GemmLaunch launch,
                                                  const Tensor& workspace);

  GemmLaunch launch_;
  std::vector<Part> parts_;
  std::string own_kernel_reason_;
};

}  // namespace shardgraph::cuda

#endif  // KERNELS_MATMUL_CUDA_GEMM_H_
