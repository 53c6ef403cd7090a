// The kernels of the reference backend: plain, slow, double precision inside;
// what every other backend is held to.
#ifndef KERNELS_REFERENCE_KERNELS_H_
#define KERNELS_REFERENCE_KERNELS_H_

#include "kernels/kernel.h"

namespace shardgraph {

// One kernel for every op, all dtypes. Lives as long as the program.
const KernelTable& ReferenceKernels();

}  // namespace shardgraph

#endif  // KERNELS_REFERENCE_KERNELS_H_
