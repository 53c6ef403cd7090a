#include "kernels/cpu/backend.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdint>
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

// A command of a random program; what it must see is known when it is made.
struct Step {
  enum Kind { kLaunch, kRecord, kWait } kind;
  int lane;
  int event;
  PreparedKernel* kernel;
};

void Walk(Backend& backend, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    if (step.kind == Step::kLaunch) backend.Launch(step.lane, step.kernel);
    if (step.kind == Step::kRecord) backend.Record(step.lane, step.event);
    if (step.kind == Step::kWait) backend.Wait(step.lane, step.event);
  }
}

std::unique_ptr<Backend::Recording> Capture(Backend& backend,
                                            const std::vector<Step>& steps) {
  EXPECT_TRUE(backend.BeginCapture().ok());
  Walk(backend, steps);
  auto recording = backend.EndCapture();
  EXPECT_TRUE(recording.ok()) << recording.status();
  return *std::move(recording);
}

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

TEST(CpuBackendTest, CallsOutOfOrderAreErrors) {
  const auto backend = MakeBackend();
  EXPECT_FALSE(backend->BeginCapture().ok());
  EXPECT_FALSE(backend->EndCapture().ok());
  EXPECT_FALSE(backend->Prepare(0, 0).ok());
  EXPECT_FALSE(backend->Prepare(1, -1).ok());
  ASSERT_TRUE(backend->Prepare(2, 1).ok());
  EXPECT_EQ(backend->Prepare(2, 1).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(backend->BeginCapture().ok());
  EXPECT_EQ(backend->BeginCapture().code(),
            absl::StatusCode::kFailedPrecondition);
  // Destroyed in the middle of a capture: nothing hangs.
}

TEST(CpuBackendTest, MemoryIsZeroAlignedAndCopied) {
  const auto backend = MakeBackend();
  ASSERT_TRUE(backend->Prepare(2, 0).ok());
  for (const int64_t bytes : {0, 1, 5000, 3 << 20}) {
    const absl::StatusOr<void*> data = backend->Allocate(bytes);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % 4096, 0u);
    EXPECT_EQ(std::string(static_cast<char*>(*data), bytes),
              std::string(bytes, '\0'));
    const std::string in(bytes, 'x');
    std::string out(bytes, '\0');
    EXPECT_TRUE(backend->CopyToDevice(*data, in.data(), bytes).ok());
    EXPECT_TRUE(backend->CopyToHost(out.data(), *data, bytes).ok());
    EXPECT_EQ(out, in);
  }
  EXPECT_EQ(backend->Allocate(-1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->Allocate(int64_t{1} << 62).status().code(),
            absl::StatusCode::kResourceExhausted);
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

// Far more commands than any queue holds.
TEST_P(LanesTest, ALaneRunsInOrder) {
  const auto backend = MakeBackend(2);
  const int num_lanes = GetParam();
  ASSERT_TRUE(backend->Prepare(num_lanes, 1).ok());
  Kernels kernels;
  constexpr int kLaunches = 6000;
  std::vector<std::vector<int>> seen(num_lanes);
  std::vector<int> expected;
  for (int i = 0; i < kLaunches; ++i) {
    expected.push_back(i);
    for (int lane = 0; lane < num_lanes; ++lane) {
      backend->Launch(lane, kernels.Make([&seen, lane, i](Lane&) {
        seen[lane].push_back(i);
      }));
    }
  }
  ASSERT_TRUE(backend->Synchronize().ok());
  for (int lane = 0; lane < num_lanes; ++lane) EXPECT_EQ(seen[lane], expected);
}

// A random program in which every kernel checks, through unsynchronised
// memory, that the kernels which must have run before it have (and under TSan
// that the backend ordered them). Each event is recorded on any lane, again
// and again.
class RandomProgram {
 public:
  RandomProgram(int num_lanes, int num_events, int length, uint32_t seed) {
    // clock[a][b]: kernels of lane b known to have run when lane a runs next.
    std::vector<std::vector<int>> clock(num_lanes,
                                        std::vector<int>(num_lanes, 0));
    std::vector<std::vector<int>> event_clock(num_events);
    progress_.resize(num_lanes);
    auto random = [&seed](int n) {
      seed = seed * 1664525u + 1013904223u;
      return static_cast<int>((seed >> 8) % n);
    };
    for (int i = 0; i < length; ++i) {
      const int lane = random(num_lanes);
      const int event = num_events > 0 ? random(num_events) : 0;
      const int what = random(num_events > 0 ? 4 : 1);
      if (what <= 1) {
        const int ordinal = clock[lane][lane]++;
        steps_.push_back(
            {Step::kLaunch, lane, 0,
             kernels_.Make([this, lane, ordinal, before = clock[lane]](Lane&) {
               Check(lane, ordinal, before);
             })});
      } else if (what == 2) {
        steps_.push_back({Step::kRecord, lane, event, nullptr});
        event_clock[event] = clock[lane];
      } else {
        steps_.push_back({Step::kWait, lane, event, nullptr});
        for (size_t b = 0; b < event_clock[event].size(); ++b) {
          clock[lane][b] = std::max(clock[lane][b], event_clock[event][b]);
        }
      }
    }
    for (const auto& c : clock) kernels_of_.push_back(c[kernels_of_.size()]);
    for (int lane = 0; lane < num_lanes; ++lane)
      progress_[lane].done.assign(kernels_of_[lane], 0);
  }

  const std::vector<Step>& steps() const { return steps_; }
  // Runs of kernel `ordinal` of each lane, once all has run.
  void ExpectRuns(int runs) const {
    EXPECT_EQ(errors_.load(), 0);
    for (size_t lane = 0; lane < progress_.size(); ++lane) {
      EXPECT_EQ(progress_[lane].done, std::vector<int>(kernels_of_[lane], runs))
          << "lane " << lane;
    }
  }

 private:
  void Check(int lane, int ordinal, const std::vector<int>& before) {
    std::vector<int>& mine = progress_[lane].done;
    const int run = ++mine[ordinal];
    for (size_t other = 0; other < before.size(); ++other) {
      for (int i = 0; i < before[other]; i += 1 + before[other] / 4) {
        // Later runs may already have come by on another lane.
        if (progress_[other].done[i] < run) errors_.fetch_add(1);
      }
    }
  }

  struct alignas(64) Progress {
    std::vector<int> done;
  };
  Kernels kernels_;
  std::vector<Step> steps_;
  std::vector<int> kernels_of_;
  std::vector<Progress> progress_;
  std::atomic<int> errors_{0};
};

TEST_P(LanesTest, EventsOrderLanesEagerlyAndCaptured) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto backend = MakeBackend();
    const int num_events = seed % 7;
    ASSERT_TRUE(backend->Prepare(GetParam(), num_events).ok());
    RandomProgram a(GetParam(), num_events, 400, seed);
    RandomProgram b(GetParam(), num_events, 1500, seed + 1000);
    Walk(*backend, a.steps());
    Walk(*backend, b.steps());
    ASSERT_TRUE(backend->Synchronize().ok());
    const auto captured_a = Capture(*backend, a.steps());
    const auto captured_b = Capture(*backend, b.steps());
    a.ExpectRuns(1);  // capturing runs nothing
    // Replays in a row, the same and another recording, with eager work
    // between them and no synchronisation.
    for (int i = 0; i < 5; ++i) {
      backend->Replay(captured_a.get());
      backend->Replay(captured_a.get());
      backend->Replay(captured_b.get());
      Walk(*backend, b.steps());
      backend->Replay(captured_b.get());
    }
    ASSERT_TRUE(backend->Synchronize().ok());
    a.ExpectRuns(11);
    b.ExpectRuns(16);
  }
}

INSTANTIATE_TEST_SUITE_P(Lanes, LanesTest, testing::Values(1, 2, 4));

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

TEST(CpuBackendTest, AReplayIsOrderedBehindAllLanesAndBeforeWhatFollows) {
  const auto backend = MakeBackend();
  ASSERT_TRUE(backend->Prepare(3, 0).ok());
  Kernels kernels;
  // Plain memory: lanes without events between them, ordered by replays alone.
  int value = 0;
  PreparedKernel* const twice = kernels.Make([&](Lane&) { value *= 2; });
  PreparedKernel* const more = kernels.Make([&](Lane&) { value += 1; });
  ASSERT_TRUE(backend->BeginCapture().ok());
  backend->Launch(1, more);
  const auto add = *backend->EndCapture();
  ASSERT_TRUE(backend->BeginCapture().ok());
  backend->Launch(2, twice);
  const auto multiply = *backend->EndCapture();
  int expected = 0;
  for (int i = 0; i < 50; ++i) {
    backend->Launch(0, more);
    backend->Replay(add.get());
    backend->Replay(multiply.get());
    backend->Launch(1, more);
    backend->Replay(add.get());
    expected = ((expected + 2) * 2 + 2) % 1000003;
    backend->Launch(0, kernels.Make([&](Lane&) { value %= 1000003; }));
    backend->Replay(add.get());
    ++expected;
  }
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(value, expected);
}

TEST(CpuBackendTest, AnEmptyRecordingReplays) {
  for (const int num_lanes : {1, 2}) {
    const auto backend = MakeBackend();
    ASSERT_TRUE(backend->Prepare(num_lanes, 0).ok());
    const auto recording = Capture(*backend, {});
    for (int i = 0; i < 3000; ++i) backend->Replay(recording.get());
    EXPECT_TRUE(backend->Synchronize().ok());
  }
}

TEST(CpuBackendTest, ARecordingMayBeDestroyedWhileItRuns) {
  const auto backend = MakeBackend();
  ASSERT_TRUE(backend->Prepare(2, 0).ok());
  Kernels kernels;
  int runs = 0;
  std::vector<Step> steps(
      100, {Step::kLaunch, 1, 0, kernels.Make([&](Lane&) { ++runs; })});
  auto recording = Capture(*backend, steps);
  backend->Replay(recording.get());
  recording.reset();
  EXPECT_EQ(runs, 100);
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
  std::vector<Step> steps;
  for (int i = 0; i < 300; ++i) {
    const int lane = i % num_lanes;
    steps.push_back({Step::kLaunch, lane, 0, kernels.Make([](Lane& lane) {
                       lane.pool->ParallelFor(64, 4, [](int64_t, int64_t) {});
                     })});
    steps.push_back({Step::kRecord, lane, i % 4, nullptr});
    steps.push_back({Step::kWait, (i + 1) % num_lanes, i % 4, nullptr});
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
