// What device intrinsics give, computed on the device.
#ifndef TESTS_FAKE_CUDA_INTRINSICS_H_
#define TESTS_FAKE_CUDA_INTRINSICS_H_

#include <cuda_runtime.h>

namespace shardgraph::fake_cuda {

inline constexpr int kIntrinsics = 32;
// out: (kIntrinsics, 32) unsigned bit patterns, one row per intrinsic, one
// column per lane. See intrinsics.cu for which.
cudaError_t Intrinsics(unsigned* out, cudaStream_t stream);

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_INTRINSICS_H_
