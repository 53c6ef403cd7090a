// Conformance of CUDA kernels on a GPU: the cases of the double. What only it
// can see, reads of memory that nobody wrote and races, is left to it.
#include <memory>

#include "kernels/testing/cuda_conformance.h"
#include "kernels/testing/cuda_device.h"

namespace shardgraph {
namespace {

class GpuDevice final : public CudaDevice {
 public:
  GpuDevice() { Open(); }
  ~GpuDevice() override { Close(); }

  void Clear() override {
    Close();
    Open();
  }
};

}  // namespace

std::unique_ptr<KernelDevice> MakeCudaDevice() {
  return std::make_unique<GpuDevice>();
}

}  // namespace shardgraph
