// A constant table in device memory, filled when a kernel is prepared and freed
// with it. Small: what grows with the model belongs in the plan.
#ifndef KERNELS_CUDA_DEVICE_TABLE_H_
#define KERNELS_CUDA_DEVICE_TABLE_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/status.h"

namespace shardgraph::cuda {

// Shared by copies of the kernel that owns it. Not during a capture.
template <typename T>
class DeviceTable {
 public:
  static_assert(std::is_trivially_copyable_v<T>);

  // The current device's memory; no memory for no values.
  static absl::StatusOr<DeviceTable> Make(absl::Span<const T> values) {
    DeviceTable table;
    table.size_ = static_cast<int64_t>(values.size());
    if (values.empty()) return table;
    void* data = nullptr;
    const size_t bytes = values.size() * sizeof(T);
    SG_RETURN_IF_CUDA_ERROR(cudaMalloc(&data, bytes));
    table.data_ = std::shared_ptr<void>(data, [](void* p) { cudaFree(p); });
    SG_RETURN_IF_CUDA_ERROR(
        cudaMemcpy(data, values.data(), bytes, cudaMemcpyHostToDevice));
    // The copy may still be under way, and lanes do not wait for its stream.
    SG_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
    return table;
  }

  const T* data() const { return static_cast<const T*>(data_.get()); }
  int64_t size() const { return size_; }

 private:
  std::shared_ptr<void> data_;
  int64_t size_ = 0;
};

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_DEVICE_TABLE_H_
