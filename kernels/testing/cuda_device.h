// KernelDevice through the CUDA runtime: what a GPU and its double have in
// common.
#ifndef KERNELS_TESTING_CUDA_DEVICE_H_
#define KERNELS_TESTING_CUDA_DEVICE_H_

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/cuda/status.h"
#include "kernels/testing/conformance.h"

namespace shardgraph {

// Open before the first call; Close frees everything.
class CudaDevice : public KernelDevice {
 public:
  char* Upload(absl::Span<const uint8_t> bytes) override {
    constexpr int64_t kAlignment = 256;
    void* memory = nullptr;
    Expect(cudaMalloc(&memory, bytes.size() + kAlignment), "cudaMalloc");
    memory_.push_back(memory);
    char* const copy = static_cast<char*>(memory) +
                       reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment;
    Expect(cudaMemcpyAsync(copy, bytes.data(), bytes.size(),
                           cudaMemcpyHostToDevice, stream_),
           "upload");
    Expect(cudaStreamSynchronize(stream_), "upload");
    return copy;
  }

  void Download(const char* device, absl::Span<uint8_t> bytes) override {
    Expect(cudaMemcpyAsync(bytes.data(), device, bytes.size(),
                           cudaMemcpyDeviceToHost, stream_),
           "download");
    Expect(cudaStreamSynchronize(stream_), "download");
  }

  absl::Status Run(PreparedKernel& kernel) override {
    Lane lane;
    lane.stream = stream_;
    const absl::Status status = kernel.Launch(lane);
    if (!status.ok()) return status;
    return cuda::CudaStatus(cudaStreamSynchronize(stream_), "the kernel");
  }

 protected:
  void Open() {
    Expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
           "cudaStreamCreate");
  }

  void Close() {
    for (void* memory : memory_) cudaFree(memory);
    memory_.clear();
    cudaStreamDestroy(stream_);
  }

 private:
  static void Expect(cudaError_t error, const char* what) {
    EXPECT_TRUE(error == cudaSuccess) << cuda::CudaStatus(error, what);
  }

  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace shardgraph

#endif  // KERNELS_TESTING_CUDA_DEVICE_H_
