#include "fsdp/launch/stop_signal.h"

#include <signal.h>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

TEST(StopSignalTest, NotesTheFirstSignal) {
  const StopSignal stop;
  EXPECT_EQ(stop.received(), 0);
  raise(SIGTERM);
  EXPECT_EQ(stop.received(), SIGTERM);
  raise(SIGTERM);
  raise(SIGINT);
  EXPECT_EQ(stop.received(), SIGTERM);
}

TEST(StopSignalTest, EachStartsAnew) {
  {
    const StopSignal stop;
    raise(SIGINT);
    EXPECT_EQ(stop.received(), SIGINT);
  }
  const StopSignal stop;
  EXPECT_EQ(stop.received(), 0);
}

TEST(StopSignalTest, ASecondInterruptEnds) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        raise(SIGINT);
        if (stop.received() == SIGINT) raise(SIGINT);
      },
      testing::KilledBySignal(SIGINT), "");
}

TEST(StopSignalTest, SignalsEndTheProcessAgainAfterwards) {
  EXPECT_EXIT(
      {
        { const StopSignal stop; }
        raise(SIGTERM);
      },
      testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace shardgraph
