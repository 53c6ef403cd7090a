// One rank of a running job is killed. The others stop by themselves, name it,
// and the job ends with status 1 and leaves nothing behind.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr char kTrain[] = "tests/faults/faulty_train";
constexpr int kRanks = 3;

int Repeats() {
  const char* text = std::getenv("SHARDGRAPH_REPEATS");
  return text == nullptr ? 2 : std::atoi(text);
}

std::set<std::string> SharedFiles() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/dev/shm", error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StrContains(name, "shardgraph")) names.insert(name);
  }
  return names;
}

class KillRankTest : public testing::Test {
 protected:
  KillRankTest() : folder_(TestFolder()) {
    AdoptOrphans();
    WriteText(folder_ + "/config.textproto", SmallConfig());
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(5000));
  }

  std::vector<std::string> Arguments(const std::string& run,
                                     std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        absl::StrCat("--config=", folder_, "/config.textproto"),
        absl::StrCat("--nproc=", kRanks),
        absl::StrCat("--run_dir=", folder_, "/", run),
        absl::StrCat("data.path=", folder_, "/tokens.bin"),
        "run.timeout_seconds=120"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // After the end of a job whose rank `killed` was killed.
  void ExpectNamed(const std::string& run, int killed, int status,
                   const std::string& output) const {
    EXPECT_EQ(status, 1) << output;
    const std::string who = absl::StrCat("rank ", killed);
    EXPECT_THAT(output, HasSubstr(who + " was killed by signal 9"));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == killed) continue;
      // Not stopped by the launcher: it found out by itself, and said so.
      EXPECT_THAT(output, HasSubstr(absl::StrCat("then rank ", rank,
                                                 " exited with status 1")));
      EXPECT_THAT(ReadText(absl::StrCat(folder_, "/", run, "/logs/rank_", rank,
                                        ".log")),
                  AnyOf(HasSubstr(who + " has died"),
                        // Between steps they meet through Gloo.
                        HasSubstr(who + " is lost")));
    }
  }

  // `saving`: a save may have been under way; its remains are cleared by the
  // next start.
  void ExpectNothingLeft(const std::string& run, bool saving = false) const {
    // Segments are anonymous: they go with the last process that has them.
    EXPECT_FALSE(AnyDescendantLeft());
    EXPECT_EQ(SharedFiles(), shared_before_);
    EXPECT_EQ(ListeningPorts(), ports_before_);
    for (const auto& entry :
         fs::recursive_directory_iterator(folder_ + "/" + run)) {
      const std::string path = entry.path().string();
      if (saving && absl::StrContains(path, "/checkpoints/")) continue;
      EXPECT_THAT(path, Not(HasSubstr(".tmp")));
    }
    // Whole lines only.
    const std::string metrics =
        ReadText(folder_ + "/" + run + "/metrics.jsonl");
    const std::vector<std::string> lines = absl::StrSplit(metrics, '\n');
    EXPECT_EQ(lines.back(), "");
    for (size_t i = 0; i + 1 < lines.size(); ++i) {
      EXPECT_TRUE(nlohmann::json::accept(lines[i])) << lines[i];
    }
  }

  const std::string folder_;
  const std::set<std::string> shared_before_ = SharedFiles();
  const std::vector<std::string> ports_before_ = ListeningPorts();
};

struct Place {
  const char* name;
  int first;   // the first kill: at this one of the events of its kind
  int stride;  // how many later each next one comes
};

class KillInTest : public KillRankTest,
                   public testing::WithParamInterface<Place> {};

TEST_P(KillInTest, OthersStopAndNameIt) {
  const Place& place = GetParam();
  for (int i = 0; i < Repeats(); ++i) {
    const int rank = i % kRanks;
    const std::string run = absl::StrCat("run", i);
    SCOPED_TRACE(absl::StrCat(place.name, " of rank ", rank, ", repeat ", i));
    Process job(
        kTrain, Arguments(run, {"run.steps=100000", "run.log_every=1000"}),
        {{"SHARDGRAPH_FAULT", absl::StrCat(rank, " ", place.name, " ",
                                           place.first + i * place.stride)}});
    const int status = job.Wait();
    ExpectNamed(run, rank, status, job.output());
    ExpectNothingLeft(run);
  }
}

// A step has tens of kernels forwards and backwards, a few gathers and
// reductions and a few updates: the kills lie in the first steps, eager and
// replayed.
INSTANTIATE_TEST_SUITE_P(Places, KillInTest,
                         testing::Values(Place{"forward", 5, 37},
                                         Place{"backward", 11, 41},
                                         Place{"update", 1, 4},
                                         Place{"gather", 2, 9},
                                         Place{"reduction", 1, 8}),
                         [](const auto& info) { return info.param.name; });

TEST_F(KillRankTest, FromOutside) {
  for (int i = 0; i < Repeats(); ++i) {
    const int rank = (i + 1) % kRanks;
    const std::string run = absl::StrCat("run", i);
    SCOPED_TRACE(absl::StrCat("rank ", rank, ", repeat ", i));
    Process job(kTrain, Arguments(run, {"run.steps=100000000"}));
    ASSERT_TRUE(job.ReadUntil("tokens/s", 3 + 5 * i)) << job.output();
    const pid_t pid = FindRank(job.pid(), rank);
    ASSERT_GT(pid, 0);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    const int status = job.Wait();
    ExpectNamed(run, rank, status, job.output());
    ExpectNothingLeft(run);
  }
}

TEST_F(KillRankTest, LauncherTakesItsRanksAlong) {
  Process job(kTrain, Arguments("run", {"run.steps=100000000"}));
  ASSERT_TRUE(job.ReadUntil("tokens/s", 2)) << job.output();
  ASSERT_EQ(kill(job.pid(), SIGKILL), 0);
  EXPECT_EQ(job.Wait(), 128 + SIGKILL);
  // Orphans, and now ours: they end by themselves.
  while (waitpid(-1, nullptr, 0) > 0) continue;
  ExpectNothingLeft("run");
}

TEST_F(KillRankTest, GoesOnFromTheLastCheckpoint) {
  // Late enough for a save that has ended: the next one waits for it.
  Process job(kTrain, Arguments("run", {"run.steps=40", "checkpoint.every=2"}),
              {{"SHARDGRAPH_FAULT", "1 update 120"}});
  ExpectNamed("run", 1, job.Wait(), job.output());
  ExpectNothingLeft("run", /*saving=*/true);
  ASSERT_THAT(job.output(), Not(HasSubstr("done: ")));
  Process again(kTrain,
                Arguments("run", {"run.steps=40", "checkpoint.every=2"}));
  EXPECT_EQ(again.Wait(), 0);
  EXPECT_THAT(again.output(), HasSubstr("resumed after step "));
  EXPECT_THAT(again.output(), HasSubstr("done: "));
  ExpectNothingLeft("run");
}

}  // namespace
}  // namespace shardgraph
