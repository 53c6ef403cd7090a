// One suite for every backend that computes: memory, order of lanes, events,
// captures and replays.
//
// A test links the suite and instantiates it:
//   INSTANTIATE_TEST_SUITE_P(Cpu, BackendConformance,
//                            testing::ValuesIn(OnLanes({1, 2, 4}, {...})));
#ifndef KERNELS_TESTING_BACKEND_CONFORMANCE_H_
#define KERNELS_TESTING_BACKEND_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/kernel.h"

namespace shardgraph {

struct BackendUnderTest {
  // A backend with an empty table. What is not determined about the order of
  // lanes may depend on `seed`.
  std::unique_ptr<Backend> (*make)(uint32_t seed) = nullptr;
  // A kernel that calls `f` on the host in the order of its lane.
  std::unique_ptr<PreparedKernel> (*host_kernel)(std::function<void()> f) =
      nullptr;
  // Commands of a random program; the longer, the more queues fill up.
  int program_length = 1500;
  int num_lanes = 1;
};

// `backend` with each of the numbers of lanes.
std::vector<BackendUnderTest> OnLanes(const std::vector<int>& num_lanes,
                                      BackendUnderTest backend);

class BackendConformance : public testing::TestWithParam<BackendUnderTest> {
 protected:
  std::unique_ptr<Backend> Make(uint32_t seed = 0) {
    return GetParam().make(seed);
  }
  // Owned by the test.
  PreparedKernel* Kernel(std::function<void()> f) {
    kernels_.push_back(GetParam().host_kernel(std::move(f)));
    return kernels_.back().get();
  }

 private:
  std::vector<std::unique_ptr<PreparedKernel>> kernels_;
};

// A command, and a walk over several.
struct BackendStep {
  enum Kind { kLaunch, kRecord, kWait } kind;
  int lane;
  int event;
  PreparedKernel* kernel;
};
void Walk(Backend& backend, const std::vector<BackendStep>& steps);
// Failures are reported to GoogleTest.
std::unique_ptr<Backend::Recording> Capture(
    Backend& backend, const std::vector<BackendStep>& steps);

}  // namespace shardgraph

#endif  // KERNELS_TESTING_BACKEND_CONFORMANCE_H_
