// Conformance of CUDA kernels, run on the CUDA double or, in //tests/gpu, on a
// GPU.
#ifndef KERNELS_TESTING_CUDA_CONFORMANCE_H_
#define KERNELS_TESTING_CUDA_CONFORMANCE_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/testing/conformance.h"

namespace shardgraph {

// CheckDeviceKernels, each run with another order of blocks and threads. Also a
// failure: whatever the double finds, such as a race, a read of memory that
// nobody wrote, or an access outside of a tensor.
void CheckCudaKernels(absl::Span<const OpCase> cases,
                      absl::Span<const KernelDef> reference,
                      absl::Span<const KernelDef> kernels);

// Kernels for Evaluate, on the double.
TestKernels OnCuda(absl::Span<const KernelDef> kernels);

}  // namespace shardgraph

#endif  // KERNELS_TESTING_CUDA_CONFORMANCE_H_
