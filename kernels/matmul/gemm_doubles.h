// Products for other processors, on code that runs everywhere: for tests.
#ifndef KERNELS_MATMUL_GEMM_DOUBLES_H_
#define KERNELS_MATMUL_GEMM_DOUBLES_H_

#include "kernels/matmul/gemm_tile.h"

namespace shardgraph {

namespace amx_double {  // BF16 operands only
extern const GemmKernels kGemmKernels;
}
namespace avx512_bf16_double {  // BF16 operands only
extern const GemmKernels kGemmKernels;
}
namespace avx512_double {
extern const GemmKernels kGemmKernels;
}

}  // namespace shardgraph

#endif  // KERNELS_MATMUL_GEMM_DOUBLES_H_
