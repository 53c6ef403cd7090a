// gpu_test: the tests of kernels and of training on a real GPU, in one program
// for tools/gpu_check.sh. Exit status: 0 all passed, 1 not, or no GPU.
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "tools/runtime/cuda.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!testing::GTEST_FLAG(list_tests)) {
    const auto gpus = shardgraph::FindCudaGpus();
    if (!gpus.ok()) {
      std::fprintf(stderr, "gpu_test: %s\n",
                   std::string(gpus.status().message()).c_str());
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}
