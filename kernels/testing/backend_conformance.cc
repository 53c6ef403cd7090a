#include "kernels/testing/backend_conformance.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shardgraph {

std::vector<BackendUnderTest> OnLanes(const std::vector<int>& num_lanes,
                                      BackendUnderTest backend) {
  std::vector<BackendUnderTest> all;
  for (const int n : num_lanes) {
    backend.num_lanes = n;
    all.push_back(backend);
  }
  return all;
}

void Walk(Backend& backend, const std::vector<BackendStep>& steps) {
  for (const BackendStep& step : steps) {
    if (step.kind == BackendStep::kLaunch)
      backend.Launch(step.lane, step.kernel);
    if (step.kind == BackendStep::kRecord)
      backend.Record(step.lane, step.event);
    if (step.kind == BackendStep::kWait) backend.Wait(step.lane, step.event);
  }
}

std::unique_ptr<Backend::Recording> Capture(
    Backend& backend, const std::vector<BackendStep>& steps) {
  EXPECT_TRUE(backend.BeginCapture().ok());
  Walk(backend, steps);
  auto recording = backend.EndCapture();
  EXPECT_TRUE(recording.ok()) << recording.status();
  return *std::move(recording);
}

namespace {

TEST_P(BackendConformance, CallsOutOfOrderAreErrors) {
  const auto backend = Make();
  EXPECT_FALSE(backend->BeginCapture().ok());
  EXPECT_FALSE(backend->EndCapture().ok());
  EXPECT_FALSE(backend->Prepare(0, 0).ok());
  EXPECT_FALSE(backend->Prepare(1, -1).ok());
  const int num_lanes = GetParam().num_lanes;
  ASSERT_TRUE(backend->Prepare(num_lanes, 1).ok());
  EXPECT_EQ(backend->Prepare(num_lanes, 1).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(backend->BeginCapture().ok());
  EXPECT_EQ(backend->BeginCapture().code(),
            absl::StatusCode::kFailedPrecondition);
  // Destroyed in the middle of a capture: nothing hangs.
}

TEST_P(BackendConformance, MemoryIsZeroAlignedAndCopied) {
  const auto backend = Make();
  ASSERT_TRUE(backend->Prepare(GetParam().num_lanes, 0).ok());
  for (const int64_t bytes : {0, 1, 5000, 3 << 20}) {
    const absl::StatusOr<void*> data = backend->Allocate(bytes);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*data) % 4096, 0u);
    std::string out(bytes, 'y');
    EXPECT_TRUE(backend->CopyToHost(out.data(), *data, bytes).ok());
    EXPECT_EQ(out, std::string(bytes, '\0'));
    std::string in(bytes, 'x');
    for (int64_t i = 0; i < bytes; ++i) in[i] = static_cast<char>(i * 7 / 5);
    const std::string sent = in;
    EXPECT_TRUE(backend->CopyToDevice(*data, in.data(), bytes).ok());
    std::fill(in.begin(), in.end(), 'z');
    EXPECT_TRUE(backend->CopyToHost(out.data(), *data, bytes).ok());
    EXPECT_EQ(out, sent);
  }
  EXPECT_EQ(backend->Allocate(-1).status().code(),
            absl::StatusCode::kInvalidArgument);
  const absl::Status too_much = backend->Allocate(int64_t{1} << 62).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(too_much.message().find("4611686018427387904 bytes"),
            std::string::npos)
      << too_much;
  EXPECT_TRUE(backend->Synchronize().ok());
}

// Far more commands than any queue holds.
TEST_P(BackendConformance, ALaneRunsInOrder) {
  const auto backend = Make();
  const int num_lanes = GetParam().num_lanes;
  ASSERT_TRUE(backend->Prepare(num_lanes, 1).ok());
  const int launches = 4 * GetParam().program_length;
  std::vector<std::vector<int>> seen(num_lanes);
  std::vector<int> expected;
  for (int i = 0; i < launches; ++i) {
    expected.push_back(i);
    for (int lane = 0; lane < num_lanes; ++lane) {
      backend->Launch(lane,
                      Kernel([&seen, lane, i] { seen[lane].push_back(i); }));
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
  RandomProgram(const BackendUnderTest& backend, int num_events, int length,
                uint32_t seed) {
    const int num_lanes = backend.num_lanes;
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
        kernels_.push_back(
            backend.host_kernel([this, lane, ordinal, before = clock[lane]] {
              Check(lane, ordinal, before);
            }));
        steps_.push_back(
            {BackendStep::kLaunch, lane, 0, kernels_.back().get()});
      } else if (what == 2) {
        steps_.push_back({BackendStep::kRecord, lane, event, nullptr});
        event_clock[event] = clock[lane];
      } else {
        steps_.push_back({BackendStep::kWait, lane, event, nullptr});
        for (size_t b = 0; b < event_clock[event].size(); ++b) {
          clock[lane][b] = std::max(clock[lane][b], event_clock[event][b]);
        }
      }
    }
    for (const auto& c : clock) kernels_of_.push_back(c[kernels_of_.size()]);
    for (int lane = 0; lane < num_lanes; ++lane)
      progress_[lane].done.assign(kernels_of_[lane], 0);
  }

  const std::vector<BackendStep>& steps() const { return steps_; }
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
  std::vector<std::unique_ptr<PreparedKernel>> kernels_;
  std::vector<BackendStep> steps_;
  std::vector<int> kernels_of_;
  std::vector<Progress> progress_;
  std::atomic<int> errors_{0};
};

TEST_P(BackendConformance, EventsOrderLanesEagerlyAndCaptured) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto backend = Make(seed);
    const int num_events = seed % 7;
    ASSERT_TRUE(backend->Prepare(GetParam().num_lanes, num_events).ok());
    RandomProgram a(GetParam(), num_events, GetParam().program_length / 4,
                    seed);
    RandomProgram b(GetParam(), num_events, GetParam().program_length,
                    seed + 1000);
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

TEST_P(BackendConformance, AReplayIsOrderedBehindAllLanesAndBeforeWhatFollows) {
  const auto backend = Make();
  ASSERT_TRUE(backend->Prepare(GetParam().num_lanes, 0).ok());
  const int last = GetParam().num_lanes - 1;
  const int middle = last / 2;
  // Plain memory: lanes without events between them, ordered by replays alone.
  int value = 0;
  PreparedKernel* const twice = Kernel([&] { value *= 2; });
  PreparedKernel* const more = Kernel([&] { value += 1; });
  ASSERT_TRUE(backend->BeginCapture().ok());
  backend->Launch(middle, more);
  const auto add = *backend->EndCapture();
  ASSERT_TRUE(backend->BeginCapture().ok());
  backend->Launch(last, twice);
  const auto multiply = *backend->EndCapture();
  int expected = 0;
  for (int i = 0; i < 50; ++i) {
    backend->Launch(0, more);
    backend->Replay(add.get());
    backend->Replay(multiply.get());
    backend->Launch(middle, more);
    backend->Replay(add.get());
    expected = ((expected + 2) * 2 + 2) % 1000003;
    backend->Launch(0, Kernel([&] { value %= 1000003; }));
    backend->Replay(add.get());
    ++expected;
  }
  ASSERT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(value, expected);
}

TEST_P(BackendConformance, AnEmptyRecordingReplays) {
  const auto backend = Make();
  ASSERT_TRUE(backend->Prepare(GetParam().num_lanes, 0).ok());
  const auto recording = Capture(*backend, {});
  for (int i = 0; i < 3000; ++i) backend->Replay(recording.get());
  EXPECT_TRUE(backend->Synchronize().ok());
}

TEST_P(BackendConformance, ARecordingMayBeDestroyedWhileItRuns) {
  const auto backend = Make();
  const int num_lanes = GetParam().num_lanes;
  ASSERT_TRUE(backend->Prepare(num_lanes, 0).ok());
  int runs = 0;
  std::vector<BackendStep> steps(
      100, {BackendStep::kLaunch, num_lanes - 1, 0, Kernel([&] { ++runs; })});
  auto recording = Capture(*backend, steps);
  backend->Replay(recording.get());
  recording.reset();
  EXPECT_TRUE(backend->Synchronize().ok());
  EXPECT_EQ(runs, 100);
}

// Copies stand in one order with everything else.
TEST_P(BackendConformance, CopiesAreOrderedWithEverything) {
  for (uint32_t seed = 0; seed < 4; ++seed) {
    const auto backend = Make(seed);
    const int num_lanes = GetParam().num_lanes;
    ASSERT_TRUE(backend->Prepare(num_lanes, 0).ok());
    const auto data = backend->Allocate(4);
    ASSERT_TRUE(data.ok()) << data.status();
    std::vector<int> runs(num_lanes, 0);
    std::vector<BackendStep> steps;
    for (int lane = 0; lane < num_lanes; ++lane) {
      steps.push_back({BackendStep::kLaunch, lane, 0,
                       Kernel([&runs, lane] { ++runs[lane]; })});
    }
    const auto recording = Capture(*backend, steps);
    for (int i = 1; i <= 10; ++i) {
      Walk(*backend, steps);
      backend->Replay(recording.get());
      int value = i;
      EXPECT_TRUE(backend->CopyToDevice(*data, &value, 4).ok());
      value = -1;
      Walk(*backend, steps);
      EXPECT_TRUE(backend->CopyToHost(&value, *data, 4).ok());
      EXPECT_EQ(value, i);
      EXPECT_EQ(runs, std::vector<int>(num_lanes, 3 * i));
    }
  }
}

}  // namespace
}  // namespace shardgraph
