// Jobs that are asked to stop, and jobs in which a rank hangs: they end by
// themselves, say at which step, and leave a checkpoint where they can.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kTrain[] = "tests/faults/faulty_train";
constexpr char kEndless[] = "run.steps=100000000";

class StopTest : public testing::Test {
 protected:
  StopTest() : folder_(TestFolder()) {
    AdoptOrphans();
    WriteText(folder_ + "/config.textproto", SmallConfig());
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(5000));
  }

  std::vector<std::string> Arguments(int ranks,
                                     std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        absl::StrCat("--config=", folder_, "/config.textproto"),
        absl::StrCat("--nproc=", ranks),
        absl::StrCat("--run_dir=", folder_, "/run"),
        absl::StrCat("data.path=", folder_, "/tokens.bin"),
        "run.timeout_seconds=120"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  std::string Log(int rank) const {
    return ReadText(absl::StrCat(folder_, "/run/logs/rank_", rank, ".log"));
  }

  // The step of the one checkpoint that is there; whole, or not at all.
  int64_t SavedStep() const {
    std::vector<std::string> names;
    for (const auto& entry :
         fs::directory_iterator(folder_ + "/run/checkpoints"))
      names.push_back(entry.path().filename().string());
    int64_t step = -1;
    EXPECT_EQ(names.size(), 1u);
    EXPECT_TRUE(names[0].substr(0, 5) == "step_" &&
                absl::SimpleAtoi(names[0].substr(5), &step))
        << names[0];
    return step;
  }

  // The run goes on from where it was stopped.
  void ExpectResumes(int ranks, int64_t step) const {
    Process again(kTrain,
                  Arguments(ranks, {absl::StrCat("run.steps=", step + 2)}));
    EXPECT_EQ(again.Wait(), 0) << again.output();
    EXPECT_THAT(
        again.output(),
        AllOf(HasSubstr(absl::StrCat("resumed after step ", step, "\n")),
              HasSubstr("done: ")));
  }

  const std::string folder_;
};

TEST_F(StopTest, TerminatedJobFinishesTheStepAndSaves) {
  constexpr int kRanks = 3;
  Process job(kTrain, Arguments(kRanks, {kEndless}));
  ASSERT_TRUE(job.ReadUntil("tokens/s", 3)) << job.output();
  ASSERT_EQ(kill(job.pid(), SIGTERM), 0);
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  const int64_t step = SavedStep();
  EXPECT_GE(step, 3);
  const std::string said = absl::StrCat(
      "after step ", step, " of 100000000; its checkpoint is saved");
  EXPECT_THAT(job.output(), AllOf(HasSubstr("stopped on request: rank 0: "),
                                  HasSubstr(said)));
  for (int rank = 0; rank < kRanks; ++rank)
    EXPECT_THAT(Log(rank), HasSubstr(said));
  ExpectResumes(kRanks, step);
}

// As when a batch system preempts one host.
TEST_F(StopTest, AllRanksStopWhenOneIsTerminated) {
  Process job(kTrain, Arguments(2, {kEndless}));
  ASSERT_TRUE(job.ReadUntil("tokens/s", 5)) << job.output();
  const pid_t pid = FindRank(job.pid(), 1);
  ASSERT_GT(pid, 0);
  ASSERT_EQ(kill(pid, SIGTERM), 0);
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  const std::string after = absl::StrCat(" after step ", SavedStep(), " of ");
  EXPECT_THAT(Log(0),
              HasSubstr("stopped because another rank was asked to" + after));
  EXPECT_THAT(Log(1), HasSubstr("stopped by Terminated" + after));
}

TEST_F(StopTest, InterruptedRankSavesAlone) {
  Process job(kTrain, Arguments(1, {kEndless}));
  ASSERT_TRUE(job.ReadUntil("tokens/s", 2)) << job.output();
  ASSERT_EQ(kill(job.pid(), SIGINT), 0);
  EXPECT_EQ(job.Wait(), 1);
  const int64_t step = SavedStep();
  EXPECT_THAT(
      job.output(),
      HasSubstr(absl::StrCat("train: stopped by Interrupt after step ", step)));
  ExpectResumes(1, step);
}

// The others find the rank late; it finds out itself, too, where it hangs, and
// ends although its kernel does not.
TEST_F(StopTest, KernelThatNeverReturns) {
  Process job(kTrain,
              Arguments(2, {kEndless, "run.timeout_seconds=4",
                            "run.startup_timeout_seconds=100"}),
              {{"SHARDGRAPH_FAULT", "1 stall 1000"}});
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  EXPECT_THAT(Log(0), AllOf(HasSubstr("train: step "), HasSubstr("; at phase "),
                            HasSubstr("rank 1 did not come within 4s")));
  EXPECT_THAT(Log(1), AllOf(HasSubstr("rank 1 is late: step "),
                            HasSubstr("has stood still for "),
                            HasSubstr(": phase micro, unit \"")));
  EXPECT_THAT(job.output(), HasSubstr("rank 1 exited with status 1"));
}

// A disk that does not answer: whoever waits has the save's own timeout.
TEST_F(StopTest, SaveHasItsOwnTimeout) {
  const std::string folder = folder_ + "/run/checkpoints/step_0000001.tmp";
  fs::create_directories(folder);
  // Opened for writing, a FIFO waits for a reader.
  ASSERT_EQ(mkfifo((folder + "/rank_00001.part.tmp").c_str(), 0600), 0);
  Process job(kTrain, Arguments(2, {"run.steps=1", "run.timeout_seconds=8",
                                    "checkpoint.timeout_seconds=2"}));
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  EXPECT_THAT(Log(0), AllOf(HasSubstr("step 1: barrier"),
                            HasSubstr("rank 1 did not come within 2s")));
  EXPECT_THAT(
      Log(1),
      HasSubstr("rank 1 is late: saving after step 1 has stood still for "));
  EXPECT_FALSE(fs::exists(folder_ + "/run/checkpoints/step_0000001"));
}

// What a kernel refuses is no wrong input.
TEST_F(StopTest, InternalErrorsHaveStatusOne) {
  Process job(kTrain, Arguments(1, {}), {{"SHARDGRAPH_FAULT", "0 refuse 7"}});
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_THAT(job.output(), AllOf(HasSubstr("step 1: wrong operands; at phase "
                                            "micro, unit \""),
                                  Not(HasSubstr("done: "))));
}

}  // namespace
}  // namespace shardgraph
