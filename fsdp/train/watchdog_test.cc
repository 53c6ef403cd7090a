#include "fsdp/train/watchdog.h"

#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class WatchdogTest : public testing::Test {
 protected:
  WatchdogTest()
      : dog_({.rank = 3,
              .advance = [this] { return advance_; },
              .where =
                  [this] {
                    if (advances_while_asked_) watch_.reset();
                    return "lane 0: waits or is done\n"
                           "lane 1: phase micro, unit \"h.2\", all_gather\n";
                  },
              .abort = [this](const absl::Status& r) { aborts_.push_back(r); },
              .end = [this](const absl::Status& r) { ends_.push_back(r); },
              .grace = absl::Seconds(10)}) {}

  void Watch(const char* what, int64_t step, absl::Duration limit) {
    watch_.reset();
    watch_.emplace(&dog_, what, step, limit);
  }
  // Seconds, one look each.
  void Pass(int seconds) {
    for (int i = 0; i < seconds; ++i) dog_.Look(absl::Seconds(1));
  }

  int64_t advance_ = 0;
  bool advances_while_asked_ = false;
  std::vector<absl::Status> aborts_, ends_;
  Watchdog dog_;
  std::optional<Watchdog::Watch> watch_;
};

TEST_F(WatchdogTest, SaysWhereWorkStandsStillAndAborts) {
  Watch("step", 7, absl::Seconds(100));
  Pass(1);
  Pass(99);
  EXPECT_TRUE(aborts_.empty());
  testing::internal::CaptureStderr();
  Pass(1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "rank 3 is late: step 7 has stood still for 1m40s\n"
            "lane 0: waits or is done\n"
            "lane 1: phase micro, unit \"h.2\", all_gather\n");
  ASSERT_EQ(aborts_.size(), 1u);
  EXPECT_EQ(aborts_[0].code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(aborts_[0].message()),
              AllOf(HasSubstr("rank 3"), HasSubstr("step 7"),
                    HasSubstr("; lane 1: phase micro, unit \"h.2\"")));
}

TEST_F(WatchdogTest, EndsTheProcessWhenAbortingDoesNotHelp) {
  Watch("step", 7, absl::Seconds(5));
  Pass(6);
  ASSERT_EQ(aborts_.size(), 1u);
  advance_ = 1;  // a kernel more does not help either
  Pass(9);
  EXPECT_TRUE(ends_.empty());
  Pass(1);
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_EQ(ends_[0], aborts_[0]);
  EXPECT_EQ(aborts_.size(), 1u);
}

TEST_F(WatchdogTest, DoesNotEndAProcessThatEndsItsWork) {
  Watch("step", 7, absl::Seconds(5));
  Pass(6);
  ASSERT_EQ(aborts_.size(), 1u);
  watch_.reset();
  Pass(1000);
  EXPECT_TRUE(ends_.empty());
}

TEST_F(WatchdogTest, WorkThatGoesOnIsNotLate) {
  Watch("step", 1, absl::Seconds(3));
  for (int i = 0; i < 100; ++i) {
    Pass(3);  // the first of them sees the change
    ++advance_;
  }
  EXPECT_TRUE(aborts_.empty());
}

TEST_F(WatchdogTest, EachPieceOfWorkHasItsOwnTimeAndLimit) {
  Watch("step", 1, absl::Seconds(5));
  Pass(5);
  Watch("saving after step", 1, absl::Seconds(1000));
  Pass(1000);
  EXPECT_TRUE(aborts_.empty());
  Watch("step", 2, absl::Seconds(5));
  Pass(5);
  watch_.reset();  // between steps nothing is watched
  Pass(1000);
  EXPECT_TRUE(aborts_.empty());
  Watch("saving after step", 2, absl::Seconds(1000));
  Pass(1001);
  ASSERT_EQ(aborts_.size(), 1u);
  EXPECT_THAT(std::string(aborts_[0].message()),
              HasSubstr("saving after step 2 has stood still"));
}

TEST_F(WatchdogTest, WorkThatEndsWhileItIsLookedAtIsNotAborted) {
  advances_while_asked_ = true;
  Watch("step", 1, absl::Seconds(3));
  Pass(10);
  EXPECT_TRUE(aborts_.empty());
}

TEST(Watchdog, NoneWatchesNothing) {
  const Watchdog::Watch watch(nullptr, "step", 1, absl::Seconds(1));
}

TEST(Watchdog, LimitsAreLongerThanTimeouts) {
  EXPECT_EQ(Watchdog::LimitOf(absl::Seconds(100)), absl::Seconds(110));
  EXPECT_EQ(Watchdog::LimitOf(absl::Seconds(1)), absl::Seconds(6));
}

// The thread looks, and ends with the watchdog.
TEST(Watchdog, ThreadLooks) {
  std::mutex mutex;
  std::condition_variable changed;
  int looks = 0;
  Watchdog dog({.advance = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    ++looks;
    changed.notify_all();
    return looks;
  }});
  const Watchdog::Watch watch(&dog, "step", 1, absl::Hours(1));
  dog.Start(absl::Milliseconds(1));
  std::unique_lock<std::mutex> lock(mutex);
  changed.wait(lock, [&] { return looks >= 3; });
}

}  // namespace
}  // namespace shardgraph
