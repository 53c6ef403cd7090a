// Conformance of CUDA kernels, run on the CUDA double or, in //tests/gpu, on a
// GPU.
#ifndef KERNELS_TESTING_CUDA_CONFORMANCE_H_
#define KERNELS_TESTING_CUDA_CONFORMANCE_H_

#include <memory>

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/testing/conformance.h"

namespace shardgraph {

// The GPU, or its double: whichever is linked.
std::unique_ptr<KernelDevice> MakeCudaDevice();

// CheckDeviceKernels, each run with another order of blocks and threads. Also a
// failure: whatever the double finds, such as a race, a read of memory that
// nobody wrote, or an access outside of a tensor.
inline void CheckCudaKernels(absl::Span<const OpCase> cases,
                             absl::Span<const KernelDef> reference,
                             absl::Span<const KernelDef> kernels) {
  CheckDeviceKernels(cases, reference, kernels, *MakeCudaDevice());
}

// Kernels for Evaluate.
inline TestKernels OnCuda(absl::Span<const KernelDef> kernels) {
  return TestKernels(kernels, MakeCudaDevice());
}

}  // namespace shardgraph

#endif  // KERNELS_TESTING_CUDA_CONFORMANCE_H_
