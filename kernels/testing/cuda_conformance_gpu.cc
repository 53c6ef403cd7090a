// Conformance of CUDA kernels on a GPU: the cases of the double. What only it
// can see, reads of memory that nobody wrote and races, is left to it.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/cuda/status.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

using cuda::CudaStatus;

class GpuDevice final : public KernelDevice {
 public:
  GpuDevice() {
    Expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
           "cudaStreamCreate");
  }
  ~GpuDevice() override {
    Clear();
    cudaStreamDestroy(stream_);
  }

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

  void MarkUnwritten(char*, int64_t) override {}

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
    return CudaStatus(cudaStreamSynchronize(stream_), "the kernel");
  }

  void Clear() override {
    for (void* memory : memory_) cudaFree(memory);
    memory_.clear();
  }

 private:
  static void Expect(cudaError_t error, const char* what) {
    EXPECT_TRUE(error == cudaSuccess) << CudaStatus(error, what);
  }

  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace

void CheckCudaKernels(absl::Span<const OpCase> cases,
                      absl::Span<const KernelDef> reference,
                      absl::Span<const KernelDef> kernels) {
  GpuDevice device;
  CheckDeviceKernels(cases, reference, kernels, device);
}

TestKernels OnCuda(absl::Span<const KernelDef> kernels) {
  return TestKernels(kernels, std::make_shared<GpuDevice>());
}

}  // namespace shardgraph
