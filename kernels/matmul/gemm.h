// Matrix products of the CPU backend, for kernels to call: FP32 and BF16
// operands in any orientation, FP32 sums.
//
// The bits of an element depend on k, the operands and the instruction set
// alone: not on the thread count, nor on m, n or how a product is divided. FP32
// kernels widen BF16 when blocks are packed. No allocation; threads need 2 MiB
// of stack.
#ifndef KERNELS_MATMUL_GEMM_H_
#define KERNELS_MATMUL_GEMM_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/cpu/target.h"
#include "kernels/lane.h"
#include "kernels/matmul/gemm_tile.h"
#include "kernels/tensor.h"

namespace shardgraph {

// True for F32 and BF16, the dtypes of everything below.
bool GemmTakes(DType dtype);

// A two-dimensional tensor as it is, and transposed.
GemmMatrix AsGemmMatrix(const Tensor& tensor);
GemmMatrix Transposed(const GemmMatrix& matrix);
// Makes `tensor` the result of `problem`.
void SetGemmResult(const Tensor& tensor, GemmProblem* problem);

// Scratch memory with which all threads share one packed copy of b: faster
// where m is large. Bytes, 0 where it does not help; the same on every machine.
int64_t GemmScratchBytes(int64_t m, int64_t n, int64_t k);

struct GemmOptions {
  // 64-byte aligned; of any size: not used where it is too small to help.
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
  CpuTarget target = BestCpuTarget();
};

// Runs on all threads of `pool`.
void RunGemm(const GemmProblem& problem, ThreadPool* pool,
             const GemmOptions& options = {});
// Runs on the calling thread: for products within a parallel loop.
void RunGemmHere(const GemmProblem& problem,
                 CpuTarget target = BestCpuTarget());

// What becomes of a tile when it is done; called by any thread of the pool.
struct GemmEpilogue {
  // Tiles are stored to scratch memory of their own, not to problem.c.
  bool discard_c = false;
  // Each tile comes with another of the same size, n / 2 columns to the right.
  bool pairs = false;
  // `right` is the other one of a pair.
  absl::FunctionRef<void(const GemmTile& tile, const GemmTile& right)> apply;
};
void RunGemm(const GemmProblem& problem, ThreadPool* pool,
             const GemmOptions& options, const GemmEpilogue& epilogue);

// Makes products whose operands `kernels` takes run on them while it lives: for
// tests. Not thread-safe.
class GemmKernelsOverride {
 public:
  explicit GemmKernelsOverride(const GemmKernels& kernels);
  ~GemmKernelsOverride();
  GemmKernelsOverride(const GemmKernelsOverride&) = delete;
  GemmKernelsOverride& operator=(const GemmKernelsOverride&) = delete;
};

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_GEMM_H_
