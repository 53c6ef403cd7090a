// A kernel for cuda_library_test: y += a * x, recorded into a CUDA graph.

#ifndef TOOLS_BUILD_CUDA_LIBRARY_TEST_KERNEL_H_
#define TOOLS_BUILD_CUDA_LIBRARY_TEST_KERNEL_H_

#include <string>
#include <vector>

// Replays the graph once. Returns an empty string, or CUDA's error text.
std::string ReplayAxpy(float a, const std::vector<float>& x,
                       std::vector<float>& y);

#endif  // TOOLS_BUILD_CUDA_LIBRARY_TEST_KERNEL_H_
