// The kernels of the CPU backend.
#ifndef KERNELS_CPU_KERNELS_H_
#define KERNELS_CPU_KERNELS_H_

#include <vector>

#include "absl/types/span.h"
#include "kernels/kernel.h"

namespace shardgraph {

// One kernel for every op in F32 and BF16; where there is no CPU kernel for
// F16, that for F32 (kernels/widened.h), and for other types the reference
// kernel. Lives as long as the program.
const KernelTable& CpuKernels();

// The lists that it is made of, for tables with others behind them.
std::vector<absl::Span<const KernelDef>> CpuKernelLists();

}  // namespace shardgraph

#endif  // KERNELS_CPU_KERNELS_H_
