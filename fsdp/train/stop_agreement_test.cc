#include "fsdp/train/stop_agreement.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

// Ranks one after the other: the first call of a meeting collects, the answer
// comes from a dry run of all.
class World {
 public:
  explicit World(int size) : asked_(size, false) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back([this, rank] { return bool(asked_[rank]); },
                          [this](int64_t mine) -> absl::StatusOr<int64_t> {
                            proposals_.push_back(mine);
                            return decided_ ? decision_ : mine;
                          });
    }
  }

  // What all ranks answer after a step that took so long on each.
  bool AfterStep(const std::vector<double>& seconds) {
    // The first pass, on copies, finds the maximum.
    proposals_.clear();
    decided_ = false;
    std::vector<StopAgreement> copies = ranks_;
    for (size_t r = 0; r < copies.size(); ++r)
      EXPECT_TRUE(copies[r].AfterStep(seconds[r]).ok());
    const size_t came = proposals_.size();
    EXPECT_TRUE(came == 0 || came == ranks_.size());  // all meet or none
    if (came > 0)
      decision_ = *std::max_element(proposals_.begin(), proposals_.end());
    decided_ = true;
    meetings_ += came > 0;
    std::vector<bool> stop;
    for (size_t r = 0; r < ranks_.size(); ++r)
      stop.push_back(*ranks_[r].AfterStep(seconds[r]));
    EXPECT_EQ(std::count(stop.begin(), stop.end(), stop[0]),
              static_cast<int64_t>(stop.size()));
    return stop[0];
  }

  std::vector<bool> asked_;
  int meetings_ = 0;

 private:
  std::vector<StopAgreement> ranks_;
  std::vector<int64_t> proposals_;
  int64_t decision_ = 0;
  bool decided_ = false;
};

TEST(StopAgreement, AllStopAfterTheSameStepWhoeverWasAsked) {
  for (int rank = 0; rank < 3; ++rank) {
    World world(3);
    for (int step = 0; step < 5; ++step)
      EXPECT_FALSE(world.AfterStep({1, 1, 1}));
    world.asked_[rank] = true;
    EXPECT_TRUE(world.AfterStep({1, 1, 1}));
  }
}

TEST(StopAgreement, LongStepsMeetEachTime) {
  World world(2);
  for (int step = 0; step < 10; ++step) world.AfterStep({0.3, 0.5});
  EXPECT_EQ(world.meetings_, 10);
}

TEST(StopAgreement, ShortStepsMeetAFewTimesASecond) {
  World world(2);
  // 10 ms: a meeting each 25 steps, by the faster rank's count.
  for (int step = 0; step < 101; ++step) world.AfterStep({0.01, 0.02});
  EXPECT_EQ(world.meetings_, 5);
  world.asked_[1] = true;
  int more = 1;
  while (!world.AfterStep({0.01, 0.02})) ++more;
  EXPECT_LE(more, 25);
}

TEST(StopAgreement, TheNextMeetingIsNeverFarAway) {
  World world(2);
  for (int step = 0; step < 129; ++step) world.AfterStep({0, 1e-7});
  EXPECT_EQ(world.meetings_, 3);
}

TEST(StopAgreement, OneRankDecidesAlone) {
  bool asked = false;
  StopAgreement alone([&] { return asked; }, nullptr);
  EXPECT_FALSE(*alone.AfterStep(0.001));
  asked = true;
  EXPECT_TRUE(*alone.AfterStep(0.001));
}

TEST(StopAgreement, PassesOnErrors) {
  StopAgreement lost([] { return false; },
                     [](int64_t) -> absl::StatusOr<int64_t> {
                       return absl::UnavailableError("rank 1 has died");
                     });
  EXPECT_EQ(lost.AfterStep(1).status().message(), "rank 1 has died");
}

}  // namespace
}  // namespace shardgraph
