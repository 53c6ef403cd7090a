// Matrix products of the CPU backend, for kernels to call: FP32 and BF16
// operands in any orientation, FP32 sums.
//
// BF16 is widened to FP32 when blocks are packed. The bits of an element depend
// on k, the operands and the instruction set alone: not on the thread count nor
// on m and n. No allocation; threads need 512 KiB of stack.
#ifndef KERNELS_MATMUL_GEMM_H_
#define KERNELS_MATMUL_GEMM_H_

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

// Runs on all threads of `pool`.
void RunGemm(const GemmProblem& problem, ThreadPool* pool,
             CpuTarget target = BestCpuTarget());
// Runs on the calling thread: for products within a parallel loop.
void RunGemmHere(const GemmProblem& problem,
                 CpuTarget target = BestCpuTarget());

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_GEMM_H_
