// A product computed by cuBLASLt, with what the library can do to the sums
// before they are stored.
//
// FP32 sums and FP32 operands throughout: no TF32, and parts of a sum are added
// in FP32. The algorithm is the heuristic's first within the workspace, chosen
// once for each shape, layout, alignment and device; the same product gives the
// same bits on every run with one version of the library on one kind of device.
#ifndef KERNELS_MATMUL_CUBLASLT_H_
#define KERNELS_MATMUL_CUBLASLT_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/matmul/cuda.h"

namespace shardgraph::cuda {

struct CublasLtProduct {
  enum class Function : uint8_t {
    kNone,
    kGelu,          // of the sums, tanh form; those go to `sums` if it has data
    kGeluGradient,  // the sums times its derivative at `sums`
  };
  // Whose sums over k go to `operand_sums`. (The epilogue that sums the result
  // of GELU's gradient would round them to BF16 with it; a gradient of weights
  // has FP32 results, and the gradient of their bias with it.)
  enum class Summed : uint8_t { kNone, kA, kB };

  ElementType type = ElementType::kF32;         // of a and b
  ElementType result_type = ElementType::kF32;  // also of bias and sums
  int64_t m = 0, n = 0, k = 0;                  // each at least 1
  GemmOperand a, b;
  const void* bias = nullptr;  // [n]; null: none, as with kGeluGradient
  bool accumulate = false;     // adds what the result holds
  Function function = Function::kNone;
  GemmResult sums;                // [m, n]
  Summed summed = Summed::kNone;  // without a bias and a function only
  void* operand_sums = nullptr;   // [m] of a, [n] of b, of the result's type
  GemmResult result;

  // Nobody else uses it while the product runs. Aligned to 256 bytes; any size.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

class CublasLtMatmul {
 public:
  // On the current device. Unimplemented, with the reason, for a product that
  // the library does not do; then an own kernel must.
  static absl::StatusOr<CublasLtMatmul> Prepare(const CublasLtProduct& product);

  absl::Status Launch(cudaStream_t stream) const;

 private:
  struct Prepared;
  explicit CublasLtMatmul(std::shared_ptr<const Prepared> prepared)
      : prepared_(std::move(prepared)) {}

  std::shared_ptr<const Prepared> prepared_;
};

// For tests of the own kernels: while it lives, the library refuses every
// product of this thread.
class CublasLtRefusal {
 public:
  CublasLtRefusal();
  ~CublasLtRefusal();
  CublasLtRefusal(const CublasLtRefusal&) = delete;
  CublasLtRefusal& operator=(const CublasLtRefusal&) = delete;
};

}  // namespace shardgraph::cuda

#endif  // KERNELS_MATMUL_CUBLASLT_H_
