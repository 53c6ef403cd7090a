// What the two files of runtime functions share.
#ifndef TESTS_FAKE_CUDA_RUNTIME_H_
#define TESTS_FAKE_CUDA_RUNTIME_H_

#include <cuda_runtime.h>

#include <mutex>

#include "tests/fake_cuda/world.h"

namespace shardgraph::fake_cuda {

// Locks the world for the length of a call, and counts it.
class ScopedLock {
 public:
  explicit ScopedLock(const char* function = __builtin_FUNCTION())
      : lock_(World::Get().mutex()) {
    ++World::Get().calls[function];
  }

 private:
  std::lock_guard<std::mutex> lock_;
};

// Remembers an error for cudaGetLastError.
cudaError_t Return(cudaError_t error);

#define FAKE_CUDA_RETURN_IF_ERROR(expression)                       \
  if (const cudaError_t error = (expression); error != cudaSuccess) \
  return ::shardgraph::fake_cuda::Return(error)

inline constexpr int kMaxSharedOptIn = 227 << 10;

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_RUNTIME_H_
