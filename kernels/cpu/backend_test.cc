#include "kernels/cpu/backend.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "kernels/kernel.h"
#include "kernels/testing/allocations.h"
#include "kernels/testing/backend_conformance.h"

namespace shardgraph {
namespace {

const KernelTable& NoKernels() {
  static const KernelTable* const table = new KernelTable({});
  return *table;
}

std::unique_ptr<Backend> MakeBackend(int threads = 1) {
  return *MakeCpuBackend({.kernels = &NoKernels(), .threads = threads});
}

// Kernels owned by a test.
class Kernels {
 public:
  template <typename F>
  PreparedKernel* Make(F f) {
    kernels_.push_back(MakeKernel(std::move(f)));
    return kernels_.back().get();
  }

 private:
  std::vector<std::unique_ptr<PreparedKernel>> kernels_;
};

TEST(CpuBackendTest, BadOptionsNameTheField) {
  auto backend = MakeCpuBackend({});
  EXPECT_EQ(backend.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(backend.status().message().find("kernels"), std::string::npos);
  backend = MakeCpuBackend({.kernels = &NoKernels(), .threads = 0});
  EXPECT_NE(backend.status().message().find("threads is 0"), std::string::npos);
  backend = MakeCpuBackend(
      {.kernels = &NoKernels(), .threads = 1, .other_lane_threads = {1, -2}});
  EXPECT_NE(backend.status().message().find("-2"), std::string::npos);
}

TEST(CpuBackendTest, AllocatorIsAskedFirst) {
  alignas(4096) static char window[4096];
  absl::StatusOr<void*> answer = window;
  const auto backend = *MakeCpuBackend({.name = "reference",
                                        .kernels = &NoKernels(),
                                        .allocate = [&](int64_t bytes) {
                                          EXPECT_EQ(bytes, 4096);
                                          return answer;
                                        }});
  EXPECT_EQ(backend->name(), "reference");
  EXPECT_EQ(&backend->kernels(), &NoKernels());
  EXPECT_EQ(*backend->Allocate(4096), window);
  answer = nullptr;
  EXPECT_NE(*backend->Allocate(4096), window);
  answer = absl::ResourceExhaustedError("no window");
  EXPECT_EQ(backend->Allocate(4096).status().message(), "no window");
}

TEST(CpuBackendTest, LanesOwnTheirShareOfThreads) {
  const auto backend = *MakeCpuBackend(
      {.kernels = &NoKernels(), .threads = 3, .other_lane_threads = {2}});
  ASSERT_TRUE(backend->Prepare(3, 0).ok());
  Kernels kernels;
  std::vector<int> threads(3), index(3);
  for (int i = 0; i < 3; ++i) {
    backend->Launch(i, kernels.Make([&, i](Lane& lane) {
      threads[i] = lane.pool->num_threads();
      index[i] = lane.index;
    }));
  }
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(threads, (std::vector<int>{3, 2, 1}));
  EXPECT_EQ(index, (std::vector<int>{0, 1, 2}));
}

class LanesTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Lanes, LanesTest, testing::Values(1, 2, 4));

INSTANTIATE_TEST_SUITE_P(
    Cpu, BackendConformance,
    testing::ValuesIn(OnLanes({1, 2, 4},
                              {.make = [](uint32_t) { return MakeBackend(2); },
                               .host_kernel =
                                   [](std::function<void()> f) {
                                     return MakeKernel(
                                         [f = std::move(f)](Lane&) { f(); });
                                   }})));

TEST(CpuBackendTest, AWaitBlocksUntilTheRecordOfItsOwnReplay) {
  const auto backend = MakeBackend();
  ASSERT_TRUE(backend->Prepare(2, 1).ok());
  Kernels kernels;
  std::atomic<int> released{0};
  std::atomic<int> produced{0};
  std::vector<int> consumed;
  ASSERT_TRUE(backend->BeginCapture().ok());
  backend->Launch(0, kernels.Make([&](Lane&) {
    const int run = produced.load() + 1;
    while (released.load() < run) std::this_thread::yield();
    produced.store(run);
  }));
  backend->Record(0, 0);
  backend->Wait(1, 0);
  backend->Launch(1,
                  kernels.Make([&](Lane&) { consumed.push_back(produced); }));
  const auto recording = *backend->EndCapture();
  backend->Replay(recording.get());
  backend->Replay(recording.get());
  // The first replay has passed the event; the second one must wait again.
  released.store(1);
  released.store(2);
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(consumed, (std::vector<int>{1, 2}));
}

TEST_P(LanesTest, AfterAnErrorLanesSkipButDoNotHang) {
  const int num_lanes = GetParam();
  const auto backend = MakeBackend();
  ASSERT_TRUE(backend->Prepare(num_lanes, 2).ok());
  Kernels kernels;
  std::atomic<int> after{0};
  PreparedKernel* const count = kernels.Make([&](Lane&) { ++after; });
  const int last = num_lanes - 1;
  ASSERT_TRUE(backend->BeginCapture().ok());
  backend->Launch(0, kernels.Make([](Lane&) {
    return absl::UnavailableError("rank 3 is lost");
  }));
  backend->Launch(0, count);
  backend->Record(0, 0);
  backend->Wait(last, 0);
  backend->Launch(last, count);
  backend->Launch(last, kernels.Make([](Lane&) {
    return absl::InternalError("comes second");
  }));
  backend->Record(last, 1);
  backend->Wait(0, 1);
  backend->Launch(0, count);
  const auto recording = *backend->EndCapture();
  backend->Replay(recording.get());
  backend->Replay(recording.get());
  backend->Launch(0, count);
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = backend->Synchronize();
    EXPECT_EQ(status, absl::UnavailableError("rank 3 is lost"));
  }
  EXPECT_EQ(after.load(), 0);
  int host = 0;
  const int device = 1;
  EXPECT_FALSE(backend->CopyToHost(&host, &device, sizeof(host)).ok());
  EXPECT_EQ(host, 0);
}

TEST_P(LanesTest, NothingIsAllocatedAfterCapture) {
  const int num_lanes = GetParam();
  const auto backend = MakeBackend(2);
  ASSERT_TRUE(backend->Prepare(num_lanes, 4).ok());
  Kernels kernels;
  std::vector<BackendStep> steps;
  for (int i = 0; i < 300; ++i) {
    const int lane = i % num_lanes;
    steps.push_back(
        {BackendStep::kLaunch, lane, 0, kernels.Make([](Lane& lane) {
           lane.pool->ParallelFor(64, 4, [](int64_t, int64_t) {});
         })});
    steps.push_back({BackendStep::kRecord, lane, i % 4, nullptr});
    steps.push_back({BackendStep::kWait, (i + 1) % num_lanes, i % 4, nullptr});
  }
  Walk(*backend, steps);
  const auto recording = Capture(*backend, steps);
  backend->Replay(recording.get());
  ASSERT_TRUE(backend->Synchronize().ok());
  const int64_t before = NumAllocations();
  for (int i = 0; i < 20; ++i) {
    backend->Replay(recording.get());
    Walk(*backend, steps);
  }
  const absl::Status status = backend->Synchronize();
  EXPECT_EQ(NumAllocations() - before, 0);
  EXPECT_TRUE(status.ok());
}

// Ranks of one process: a backend and a host thread each; a kernel that blocks
// until its peers have come stands for a collective.
TEST_P(LanesTest, RanksOfOneProcessMeetInCollectives) {
  constexpr int kRanks = 3;
  constexpr int kSteps = 30;
  const int num_lanes = GetParam();
  std::barrier meeting(kRanks);
  std::vector<int64_t> contribution(kRanks, 0), sum(kRanks, 0);
  std::vector<std::thread> hosts;
  for (int rank = 0; rank < kRanks; ++rank) {
    hosts.emplace_back([&, rank] {
      const auto backend = MakeBackend();
      ASSERT_TRUE(backend->Prepare(num_lanes, 2).ok());
      Kernels kernels;
      const int last = num_lanes - 1;
      ASSERT_TRUE(backend->BeginCapture().ok());
      backend->Launch(0, kernels.Make([&, rank](Lane&) {
        contribution[rank] = sum[rank] + rank + 1;
      }));
      backend->Record(0, 0);
      backend->Wait(last, 0);
      backend->Launch(last, kernels.Make([&, rank](Lane&) {
        meeting.arrive_and_wait();
        sum[rank] = 0;
        for (const int64_t c : contribution) sum[rank] += c % 1000;
        meeting.arrive_and_wait();
      }));
      backend->Record(last, 1);
      backend->Wait(0, 1);
      const auto recording = *backend->EndCapture();
      for (int i = 0; i < kSteps; ++i) backend->Replay(recording.get());
      EXPECT_TRUE(backend->Synchronize().ok());
    });
  }
  for (std::thread& host : hosts) host.join();
  int64_t expected = 0;
  for (int i = 0; i < kSteps; ++i) {
    int64_t next = 0;
    for (int rank = 0; rank < kRanks; ++rank)
      next += (expected + rank + 1) % 1000;
    expected = next;
  }
  EXPECT_EQ(sum, std::vector<int64_t>(kRanks, expected));
}

}  // namespace
}  // namespace shardgraph
