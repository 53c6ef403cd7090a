// cuda_library compiles device code for every architecture and links; with a
// GPU the kernel also runs.

#include "cuda_runtime.h"
#include "gtest/gtest.h"
#include "tools/build/cuda_library_test_kernel.h"

namespace {

TEST(CudaLibraryTest, ReplaysAGraph) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    // Without a GPU the runtime itself must still answer, and with an error.
    std::vector<float> y = {2.0f};
    EXPECT_NE(ReplayAxpy(2.0f, {1.0f}, y), "");
    GTEST_SKIP() << "no CUDA device";
  }
  const std::vector<float> x = {1.0f, 2.0f, 3.0f};
  std::vector<float> y = {10.0f, 20.0f, 30.0f};
  EXPECT_EQ(ReplayAxpy(2.0f, x, y), "");
  EXPECT_EQ(y, (std::vector<float>{12.0f, 24.0f, 36.0f}));
}

}  // namespace
