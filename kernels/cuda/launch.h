// How kernels are launched, and how a kernel names its dynamic shared memory:
// the one place where the CUDA double and CUDA differ.
//
// Kernels are never launched with <<<>>>, which a C++ compiler cannot read,
// and never declare `extern __shared__`, which in C++ would be a linker symbol.
// Everything else in a .cu file is plain CUDA C++ and compiles unchanged with
// g++ as C++20 when tests/fake_cuda/device.h is included first (see there).
#ifndef KERNELS_CUDA_LAUNCH_H_
#define KERNELS_CUDA_LAUNCH_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace shardgraph::cuda {

// Enqueues `kernel<<<grid, block, shared_bytes, stream>>>(arguments...)`.
// Arguments convert to the parameter types as in an ordinary call and are
// copied before this returns. Capture-safe: no allocation, no synchronization.
template <typename... Parameters>
cudaError_t Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block,
                   size_t shared_bytes, cudaStream_t stream,
                   std::type_identity_t<Parameters>... arguments) {
  static_assert((std::is_trivially_copyable_v<Parameters> && ...),
                "kernel arguments are copied byte by byte");
#ifdef SHARDGRAPH_FAKE_CUDA
  ::shardgraph::fake_cuda::DescribeKernel(kernel);
#endif
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  // The final null keeps the array non-empty for kernels without parameters.
  void* pointers[] = {
      const_cast<void*>(static_cast<const void*>(&arguments))..., nullptr};
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel),
                             pointers);
}

// Dynamic shared memory of a kernel that has not opted in to more: 48 KiB less
// its static variables, which are taken to be 1 KiB at most.
inline constexpr int64_t kSharedWithoutOptIn = 47 << 10;

// Launch with `shared_bytes` of dynamic shared memory, up to `most_bytes`,
// which is the same for each launch of a kernel: a captured launch stays valid.
template <typename... Parameters>
cudaError_t LaunchWithShared(void (*kernel)(Parameters...), dim3 grid,
                             dim3 block, int64_t shared_bytes,
                             int64_t most_bytes, cudaStream_t stream,
                             std::type_identity_t<Parameters>... arguments) {
  if (most_bytes > kSharedWithoutOptIn) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(most_bytes));
    if (error != cudaSuccess) return error;
  }
  return Launch(kernel, grid, block, static_cast<size_t>(shared_bytes), stream,
                arguments...);
}

#if defined(__CUDACC__) || defined(SHARDGRAPH_FAKE_CUDA)

// The block's dynamic shared memory, 128-byte aligned. Every call in a block
// returns the same address, whatever T.
template <typename T>
__device__ __forceinline__ T* DynamicShared() {
#ifdef SHARDGRAPH_FAKE_CUDA
  return static_cast<T*>(::shardgraph::fake_cuda::DynamicShared());
#else
  extern __shared__ __align__(128) unsigned char dynamic_shared_bytes[];
  return reinterpret_cast<T*>(dynamic_shared_bytes);
#endif
}

#endif

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_LAUNCH_H_
