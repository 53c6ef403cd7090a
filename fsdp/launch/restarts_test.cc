// Ranks are shell commands here: they need no store.

#include "fsdp/launch/restarts.h"

#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class RestartsTest : public testing::Test {
 protected:
  // Ranks that run `script`.
  LocalLaunchOptions Options(const std::string& script) {
    const std::string name =
        testing::UnitTest::GetInstance()->current_test_info()->name();
    return {
        .num_ranks = 2,
        .command = {"/bin/sh", "-c", script},
        .log_directory = absl::StrCat(testing::TempDir(), "/", name, "/logs"),
        .notice = absl::Seconds(60)};
  }
  RestartOptions Restarts(int most) {
    RestartOptions options;
    options.max_restarts = most;
    options.say = [this](const std::string& text) { said_.push_back(text); };
    options.wait = [this](absl::Duration time) {
      waits_.push_back(absl::ToInt64Seconds(time));
      return stop_after_ == 0 || waits_.size() < stop_after_;
    };
    return options;
  }

  std::vector<std::string> said_;
  std::vector<int64_t> waits_;
  size_t stop_after_ = 0;
};

TEST_F(RestartsTest, UntilAllIsWell) {
  const LocalLaunchOptions options = Options(
      "echo try $TORCHELASTIC_RESTART_COUNT of rank $RANK; "
      "[ $RANK = 0 ] || [ $TORCHELASTIC_RESTART_COUNT = 2 ] || exit 7");
  const LaunchResult result = RunWithRestarts(options, Restarts(5));
  EXPECT_EQ(result.exit_status, 0) << result.message;
  EXPECT_FALSE(result.stopped);
  EXPECT_THAT(waits_, ElementsAre(1, 2));
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_THAT(said_[0], AllOf(StartsWith("rank 1 exited with status 7"),
                              HasSubstr("restart 1 of at most 5 in 1s")));
  std::ostringstream log;
  log << std::ifstream(options.log_directory + "/rank_1.log").rdbuf();
  EXPECT_EQ(log.str(), "try 0 of rank 1\ntry 1 of rank 1\ntry 2 of rank 1\n");
}

TEST_F(RestartsTest, GivesUpAndSaysTheCauseFirst) {
  RestartOptions restarts = Restarts(8);
  const LaunchResult result =
      RunWithRestarts(Options("[ $RANK = 0 ] || kill -9 $$"), restarts);
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(result.message, AllOf(StartsWith("rank 1 was killed by signal 9"),
                                    HasSubstr("given up after 8 restarts")));
  EXPECT_THAT(waits_, ElementsAre(1, 2, 4, 8, 16, 32, 60, 60));
}

TEST_F(RestartsTest, ALongRunBeginsAnew) {
  RestartOptions restarts = Restarts(3);
  restarts.healthy = absl::ZeroDuration();
  EXPECT_EQ(RunWithRestarts(Options("exit 1"), restarts).exit_status, 1);
  EXPECT_THAT(waits_, ElementsAre(1, 1, 1));
}

TEST_F(RestartsTest, NoneWhenNoneAreAllowed) {
  const LaunchResult result = RunWithRestarts(Options("exit 1"), Restarts(0));
  EXPECT_EQ(result.exit_status, 1);
  EXPECT_THAT(waits_, IsEmpty());
  EXPECT_THAT(result.message, testing::Not(HasSubstr("given up")));
}

TEST_F(RestartsTest, WrongInputIsNotTriedAgain) {
  EXPECT_EQ(RunWithRestarts(Options("exit 2"), Restarts(5)).exit_status, 2);
  EXPECT_THAT(waits_, IsEmpty());
}

TEST_F(RestartsTest, NobodyIsStartedAgainAfterARequestToStop) {
  // The ranks end badly after SIGTERM; the launcher gets it from one of them.
  const LaunchResult stopped = RunWithRestarts(
      Options("trap 'exit 1' TERM; [ $RANK = 0 ] && kill -TERM $PPID; "
              "sleep 1000 & wait"),
      Restarts(5));
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.exit_status, 1);
  EXPECT_THAT(waits_, IsEmpty());

  stop_after_ = 2;
  const LaunchResult waiting = RunWithRestarts(Options("exit 1"), Restarts(5));
  EXPECT_TRUE(waiting.stopped);
  EXPECT_THAT(waits_, ElementsAre(1, 2));
  EXPECT_THAT(waiting.message, HasSubstr("stopped on request"));
}

TEST_F(RestartsTest, SignalsEndABackOff) {
  RestartOptions restarts;
  restarts.backoff = absl::Hours(1);
  restarts.say = [](const std::string&) {
    // Arrives as soon as it is waited for, or pending before.
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    kill(getpid(), SIGTERM);
  };
  EXPECT_TRUE(RunWithRestarts(Options("exit 1"), restarts).stopped);
}

}  // namespace
}  // namespace shardgraph
