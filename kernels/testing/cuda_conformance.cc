#include "kernels/testing/cuda_conformance.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "kernels/cuda/status.h"
#include "tests/fake_cuda/control.h"

namespace shardgraph {
namespace {

using cuda::CudaStatus;

class DoubleDevice final : public KernelDevice {
 public:
  DoubleDevice() { Start(); }
  ~DoubleDevice() override { End(); }

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

  void MarkUnwritten(char* device, int64_t bytes) override {
    fake_cuda::MarkUnwritten(device, bytes);
  }

  void Download(const char* device, absl::Span<uint8_t> bytes) override {
    // Guards and gaps that nobody may read are read here all the same.
    fake_cuda::MarkWritten(device, bytes.size());
    Expect(cudaMemcpyAsync(bytes.data(), device, bytes.size(),
                           cudaMemcpyDeviceToHost, stream_),
           "download");
  }

  absl::Status Run(PreparedKernel& kernel) override {
    Lane lane;
    lane.stream = stream_;
    const absl::Status status = kernel.Launch(lane);
    if (!status.ok()) return status;
    return CudaStatus(cudaStreamSynchronize(stream_), "the kernel");
  }

  void Clear() override {
    End();
    ++seed_;
    Start();
  }

 private:
  void Start() {
    fake_cuda::Reset({.seed = seed_});
    fake_cuda::TakeReport();
    Expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
           "cudaStreamCreate");
  }

  void End() {
    for (void* memory : memory_) cudaFree(memory);
    memory_.clear();
    cudaStreamDestroy(stream_);
    EXPECT_EQ(fake_cuda::TakeReport(), "") << "seed " << seed_;
  }

  static void Expect(cudaError_t error, const char* what) {
    EXPECT_TRUE(error == cudaSuccess) << CudaStatus(error, what);
  }

  // 0 is the plain order.
  uint64_t seed_ = 0;
  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace

void CheckCudaKernels(absl::Span<const OpCase> cases,
                      absl::Span<const KernelDef> reference,
                      absl::Span<const KernelDef> kernels) {
  DoubleDevice device;
  CheckDeviceKernels(cases, reference, kernels, device);
}

TestKernels OnCuda(absl::Span<const KernelDef> kernels) {
  return TestKernels(kernels, std::make_shared<DoubleDevice>());
}

}  // namespace shardgraph
