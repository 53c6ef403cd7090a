// SharedByDevice: one object per device, such as a library's handle.
#ifndef KERNELS_CUDA_PER_DEVICE_H_
#define KERNELS_CUDA_PER_DEVICE_H_

#include <cuda_runtime.h>

#include <map>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/status.h"
#include "kernels/status_macros.h"

namespace shardgraph::cuda {

// The T of the current device, which those who use it share and the last one
// destroys; where there is none, a new one for which `open`(T&) was OK. Thread
// safe.
template <typename T, typename Open>
absl::StatusOr<std::shared_ptr<T>> SharedByDevice(Open open) {
  int device = 0;
  SG_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  static std::mutex mutex;
  static std::map<int, std::weak_ptr<T>> all;
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<T>& known = all[device];
  std::shared_ptr<T> shared = known.lock();
  if (shared == nullptr) {
    shared = std::make_shared<T>();
    SG_RETURN_IF_ERROR(open(*shared));
    known = shared;
  }
  return shared;
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_PER_DEVICE_H_
