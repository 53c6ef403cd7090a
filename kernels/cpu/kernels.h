// The kernels of the CPU backend.
#ifndef KERNELS_CPU_KERNELS_H_
#define KERNELS_CPU_KERNELS_H_

#include "kernels/kernel.h"

namespace shardgraph {

// One kernel for every op in F32 and BF16; where there is no CPU kernel for
// F16, that for F32 (kernels/widened.h), and for other types the reference
// kernel. Lives as long as the program.
const KernelTable& CpuKernels();

}  // namespace shardgraph

#endif  // KERNELS_CPU_KERNELS_H_
