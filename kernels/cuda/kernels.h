// The kernels of the CUDA backend.
//
// A family's kernels are a `cuda_kernels` target (tools/build/cuda.bzl) of
// three files in its folder:
//   cuda.h   functions that launch: device pointers, sizes and a cudaStream_t;
//            each enqueues, returns a cudaError_t, and never waits.
//   cuda.cu  the kernels and those functions. Compiled by nvcc, and by g++ for
//            the double: what kernels may use is said in
//            tests/fake_cuda/device.h. They are launched with Launch
//            (kernels/cuda/launch.h), never with <<<>>>, and include no Abseil.
//   cuda.cc  the KernelDefs, listed by <Family>CudaKernels(), which <family>.h
//            declares. A PreparedKernel calls the launch function on
//            StreamOf(lane) and returns CudaStatus(error, op name).
// The list is then added in kernels.cc, and to the family's test:
//   TEST(Norm, Cuda) {
//     CheckCudaKernels(NormCases(), NormReferenceKernels(), NormCudaKernels());
//   }
// with kernels/testing/cuda_conformance.h and ":cuda_on_double" among the deps.
#ifndef KERNELS_CUDA_KERNELS_H_
#define KERNELS_CUDA_KERNELS_H_

#include "kernels/kernel.h"

namespace shardgraph {

// In F32 and BF16; of F16 where kernels say so, else by way of F32
// (kernels/widened.h). Lives as long as the program.
const KernelTable& CudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_CUDA_KERNELS_H_
