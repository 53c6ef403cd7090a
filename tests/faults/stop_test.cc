// Jobs that are asked to stop, and jobs in which a rank hangs: they end by
// themselves, say at which step, and leave a checkpoint where they can.

#include <signal.h>
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
using testing::AnyOf;
using testing::ContainsRegex;
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
  EXPECT_EQ(job.Wait(), 0) << job.output();
  EXPECT_FALSE(AnyDescendantLeft());
  const int64_t step = SavedStep();
  EXPECT_GE(step, 3);
  const std::string said = absl::StrCat(
      "after step ", step, " of 100000000; its checkpoint is saved");
  EXPECT_THAT(job.output(), AllOf(HasSubstr("stopped b"), HasSubstr(said),
                                  Not(HasSubstr("done: "))));
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
  EXPECT_EQ(job.Wait(), 0) << job.output();
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
  EXPECT_EQ(job.Wait(), 0) << job.output();
  const int64_t step = SavedStep();
  EXPECT_THAT(job.output(), HasSubstr(absl::StrCat(
                                "stopped by Interrupt after step ", step)));
  ExpectResumes(1, step);
}

// The others find the rank late; it finds out itself, too, where it hangs, and
// ends although its kernel does not.
TEST_F(StopTest, KernelThatNeverReturns) {
  Process job(kTrain,
              Arguments(3, {kEndless, "run.timeout_seconds=4",
                            "run.startup_timeout_seconds=100"}),
              {{"SHARDGRAPH_FAULT", "1 stall 1000"}});
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  // Step, collective, rank, phase, unit; and what ran before.
  for (int rank : {0, 2}) {
    EXPECT_THAT(Log(rank),
                AllOf(ContainsRegex("train: step [0-9]+: "),
                      ContainsRegex("(all_gather|reduce_scatter|all_reduce)"),
                      HasSubstr("rank 1 did not come within 4s"),
                      HasSubstr("; at phase "), HasSubstr("unit \""),
                      HasSubstr("ended before it, the last first: ")));
  }
  EXPECT_THAT(Log(1), AllOf(HasSubstr("rank 1 is late: step "),
                            HasSubstr("has stood still for "),
                            HasSubstr(": phase micro, unit \"")));
  EXPECT_THAT(job.output(), HasSubstr("rank 1 exited with status 1"));
}

// A disk that does not answer: the last save has a timeout of its own, and the
// process ends although its write does not.
TEST_F(StopTest, SaveHasItsOwnTimeout) {
  Process job(kTrain,
              Arguments(2, {"run.steps=1", "run.timeout_seconds=8",
                            "checkpoint.timeout_seconds=2"}),
              {{"SHARDGRAPH_FAULT", "1 fsync 1"}});
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  EXPECT_THAT(Log(0),
              AnyOf(HasSubstr("rank 1: it has not written its part within 2s"),
                    HasSubstr("another rank is not done with its part")));
  EXPECT_THAT(Log(1),
              HasSubstr("rank 1: saving after step 1 is not done within 2s"));
  EXPECT_FALSE(fs::exists(folder_ + "/run/checkpoints/step_0000001"));
}

// The same in the middle of a run: an alarm, and training goes on.
TEST_F(StopTest, AStalledDiskHoldsUpNobody) {
  Process job(
      kTrain,
      Arguments(3,
                {kEndless, "checkpoint.every=2", "checkpoint.stall_seconds=0.2",
                 "checkpoint.timeout_seconds=1", "run.timeout_seconds=20"}),
      {{"SHARDGRAPH_FAULT", "1 fsync 1"}});
  ASSERT_TRUE(job.ReadUntil("is left out", 5)) << job.output();
  ASSERT_EQ(kill(job.pid(), SIGTERM), 0);
  EXPECT_EQ(job.Wait(), 1);
  EXPECT_FALSE(AnyDescendantLeft());
  EXPECT_THAT(
      Log(1),
      HasSubstr("ALARM: rank 1: saving after step 2 has stood still for"));
}

// A full disk (files may not grow) and a folder that cannot be made: every step
// runs, and each save says why it failed.
TEST_F(StopTest, TrainsOnWithoutRoomForCheckpoints) {
  const auto run = [&](const std::string& shell, const std::string& why) {
    std::vector<std::string> arguments = {"-c", shell + " exec \"$0\" \"$@\"",
                                          kTrain};
    for (std::string& argument :
         Arguments(1, {"run.steps=6", "checkpoint.every=2"}))
      arguments.push_back(std::move(argument));
    Process job("/bin/bash", arguments);
    EXPECT_EQ(job.Wait(), 1) << job.output();
    for (int step : {2, 4, 6}) {
      EXPECT_THAT(job.output(),
                  HasSubstr(absl::StrCat("the checkpoint after step ", step,
                                         " is not saved: ")));
    }
    EXPECT_THAT(job.output(),
                AllOf(HasSubstr(why), HasSubstr("training goes on"),
                      HasSubstr("train: step 6: "), HasSubstr("step 6/6")));
  };
#ifndef SG_TSAN  // It keeps memory of its own in a file that may not grow.
  run("trap '' XFSZ; ulimit -f 200;", "File too large");
  for (const auto& entry : fs::directory_iterator(folder_ + "/run/checkpoints"))
    ADD_FAILURE() << entry.path() << " takes room";
  fs::remove_all(folder_ + "/run");
#endif
  fs::create_directories(folder_ + "/run");
  WriteText(folder_ + "/run/checkpoints", "in the way");
  run("", "/run/checkpoints/step_0000002.tmp: Not a directory");
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
