#include "kernels/testing/cuda_conformance.h"

#include <cstdint>
#include <memory>

#include "gtest/gtest.h"
#include "kernels/testing/cuda_device.h"
#include "tests/fake_cuda/control.h"

namespace shardgraph {
namespace {

class DoubleDevice final : public CudaDevice {
 public:
  DoubleDevice() { Start(); }
  ~DoubleDevice() override { End(); }

  void MarkUnwritten(char* device, int64_t bytes) override {
    fake_cuda::MarkUnwritten(device, bytes);
  }

  void Download(const char* device, absl::Span<uint8_t> bytes) override {
    // Guards and gaps that nobody may read are read here all the same.
    fake_cuda::MarkWritten(device, bytes.size());
    CudaDevice::Download(device, bytes);
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
    Open();
  }

  void End() {
    Close();
    EXPECT_EQ(fake_cuda::TakeReport(), "") << "seed " << seed_;
  }

  // 0 is the plain order.
  uint64_t seed_ = 0;
};

}  // namespace

std::unique_ptr<KernelDevice> MakeCudaDevice() {
  return std::make_unique<DoubleDevice>();
}

}  // namespace shardgraph
