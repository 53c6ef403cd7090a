// Ranks of a job under `launch` are killed at random moments, again and again:
// while they start, meet, load, compute, exchange and save. The job ends well
// each time, and every loss it has ever logged, those of repeated steps too,
// and the final weights and moments are bit for bit those of a run that nobody
// has disturbed.

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/tensorboard.pb.h"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr char kLaunch[] = "tools/launch/launch";
constexpr char kTrain[] = "tests/faults/faulty_train";
constexpr int kRanks = 3;
constexpr int kSaveEvery = 5;

// Kills in all, each way, in runs of so many steps; few where everybody waits
// for the test.
int Kills() {
  const char* text = std::getenv("SHARDGRAPH_KILLS");
  return text == nullptr ? 3 : std::atoi(text);
}
int Steps() { return std::getenv("SHARDGRAPH_KILLS") == nullptr ? 100 : 300; }

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + what.size()))
    ++count;
  return count;
}

// Step and loss of every event of a file of TensorBoard, as they were written.
std::vector<std::pair<int64_t, float>> LoggedLosses(const std::string& path) {
  const std::string text = ReadText(path);
  std::vector<std::pair<int64_t, float>> losses;
  constexpr size_t kHead = 12, kTail = 4;  // length and its CRC; CRC
  for (size_t at = 0; at + kHead < text.size();) {
    uint64_t bytes = 0;
    std::memcpy(&bytes, text.data() + at, sizeof(bytes));
    // A kill can leave no half record: each is written at once.
    EXPECT_LE(at + kHead + bytes + kTail, text.size()) << path;
    tensorboard::Event event;
    EXPECT_TRUE(event.ParseFromString(text.substr(at + kHead, bytes))) << path;
    for (const auto& value : event.summary().value()) {
      if (value.tag() == "train/loss")
        losses.emplace_back(event.step(), value.simple_value());
    }
    at += kHead + bytes + kTail;
  }
  return losses;
}

class KillRestartTest : public testing::Test {
 protected:
  KillRestartTest() : folder_(TestFolder()), random_(7) {
    AdoptOrphans();
    WriteText(folder_ + "/config.textproto", SmallConfig());
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(5000));
  }

  std::string Directory(const std::string& run) const {
    return absl::StrCat(folder_, "/", run);
  }

  // Slow saves, so that many kills meet one.
  std::vector<std::string> Arguments(const std::string& run) const {
    return {absl::StrCat("--nproc=", kRanks),
            "--max_restarts=1000",
            "--backoff_seconds=0",
            absl::StrCat("--log_dir=", Directory(run), "/logs"),
            "--",
            kTrain,
            absl::StrCat("--config=", folder_, "/config.textproto"),
            absl::StrCat("--run_dir=", Directory(run)),
            absl::StrCat("data.path=", folder_, "/tokens.bin"),
            absl::StrCat("run.steps=", Steps()),
            absl::StrCat("checkpoint.every=", kSaveEvery),
            "checkpoint.write_mb_per_second=5",
            "run.timeout_seconds=120",
            "run.log_every=1000"};
  }

  // Once for all tests.
  void RunUndisturbed() {
    if (!losses_.empty()) return;
    Process job(kLaunch, Arguments("whole"));
    ASSERT_EQ(job.Wait(), 0) << job.output();
    for (const auto& [step, loss] : EventsOf("whole"))
      EXPECT_TRUE(losses_.emplace(step, loss).second);
    ASSERT_EQ(losses_.size(), static_cast<size_t>(Steps()));
    metrics_ = Metrics("whole");
    ASSERT_EQ(metrics_.size(), static_cast<size_t>(Steps()));
    for (const auto& entry : fs::directory_iterator(Last("whole"))) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, "shard-"))
        shards_[name] = ReadText(entry.path().string());
    }
    ASSERT_GE(shards_.size(), static_cast<size_t>(kRanks));
  }

  std::vector<std::pair<int64_t, float>> EventsOf(const std::string& run) {
    std::vector<std::pair<int64_t, float>> all;
    for (const auto& entry : fs::directory_iterator(Directory(run))) {
      if (!absl::StrContains(entry.path().string(), "tfevents")) continue;
      const auto losses = LoggedLosses(entry.path().string());
      all.insert(all.end(), losses.begin(), losses.end());
    }
    return all;
  }

  // What metrics.jsonl says of each step, times apart.
  std::vector<std::string> Metrics(const std::string& run) const {
    std::vector<std::string> lines = absl::StrSplit(
        ReadText(Directory(run) + "/metrics.jsonl"), '\n', absl::SkipEmpty());
    for (std::string& line : lines)
      line.resize(std::min(line.size(), line.find(", \"tokens_per_second\"")));
    return lines;
  }

  // After a job that was disturbed and has ended: its kills.
  int ExpectTheSame(const std::string& run, Process& job) {
    EXPECT_EQ(job.Wait(), 0) << job.output();
    EXPECT_FALSE(AnyDescendantLeft());
    EXPECT_THAT(job.output(), HasSubstr("done: "));
    EXPECT_THAT(job.output(), Not(HasSubstr("is damaged")));
    const auto events = EventsOf(run);
    EXPECT_GE(events.size(), static_cast<size_t>(Steps()));
    for (const auto& [step, loss] : events)
      EXPECT_EQ(loss, losses_.at(step)) << "step " << step;
    EXPECT_EQ(Metrics(run), metrics_);
    for (const auto& [name, text] : shards_)
      EXPECT_TRUE(ReadText(absl::StrCat(Last(run), "/", name)) == text) << name;
    for (const auto& entry :
         fs::directory_iterator(Directory(run) + "/checkpoints"))
      EXPECT_THAT(entry.path().string(), Not(HasSubstr(".tmp")));
    saves_interrupted_ +=
        Count(job.output(), "an interrupted save has left it") +
        Count(job.output(), "was complete, but not under");
    const int restarts = Count(job.output(), " of at most 1000 in ");
    EXPECT_LE(restarts, Count(job.output(), "was killed by signal 9"));
    return restarts;
  }

  // The checkpoint after the last step.
  std::string Last(const std::string& run) const {
    return absl::StrCat(Directory(run), "/checkpoints/step_0000", Steps());
  }
  // Whether a save is under way.
  bool Saving(const std::string& run) const {
    std::error_code error;
    for (const auto& entry :
         fs::directory_iterator(Directory(run) + "/checkpoints", error)) {
      if (absl::StrContains(entry.path().string(), ".tmp")) return true;
    }
    return false;
  }

  const std::string folder_;
  std::mt19937 random_;
  // Of the undisturbed run: by step, and its last checkpoint by file.
  static inline std::map<int64_t, float> losses_;
  static inline std::vector<std::string> metrics_;
  static inline std::map<std::string, std::string> shards_;
  int saves_interrupted_ = 0;
};

// From outside: any rank, at any time; half of the times while a save runs.
TEST_F(KillRestartTest, AtRandomMoments) {
  RunUndisturbed();
  const auto below = [this](int n) { return static_cast<int>(random_() % n); };
  int kills = 0;
  for (int i = 0; kills < Kills(); ++i) {
    const std::string run = absl::StrCat("run", i);
    Process job(kLaunch, Arguments(run));
    pid_t before = 0;
    // So many that the run makes way between them.
    for (int k = 0; k < 12 && kills + k < Kills(); ++k) {
      const int rank = below(kRanks);
      pid_t pid = 0;
      while ((pid = FindRank(job.pid(), rank)) == 0 || pid == before) {
        if (kill(job.pid(), 0) != 0 || fs::exists(Last(run))) break;
        usleep(1000);
      }
      if (fs::exists(Last(run))) break;
      if (below(2) == 0) {
        while (!Saving(run) && !fs::exists(Last(run))) usleep(100);
        usleep(below(20000));
      } else {
        usleep(below(5000 * Steps()));
      }
      before = pid;
      kill(pid, SIGKILL);
    }
    kills += ExpectTheSame(run, job);
    if (HasFailure()) return;
  }
  std::printf("%d kills, %d saves interrupted\n", kills, saves_interrupted_);
}

// In the middle of kernels and collectives: each start of the job dies at its
// COUNT-th.
TEST_F(KillRestartTest, InComputeAndCollectives) {
  RunUndisturbed();
  const struct {
    int rank;
    const char* place;
    int count;
  } faults[] = {{1, "reduction", 601},  // of 300 steps
                {0, "gather", 1403},
                {2, "forward", 4507},
                {0, "backward", 9007},
                {1, "update", 911}};
  int kills = 0;
  for (int i = 0; kills < Kills(); ++i) {
    const auto& fault = faults[i % 5];
    SCOPED_TRACE(fault.place);
    const std::string run = absl::StrCat("run", i);
    Process job(
        kLaunch, Arguments(run),
        {{"SHARDGRAPH_FAULT", absl::StrCat(fault.rank, " ", fault.place, " ",
                                           fault.count * Steps() / 300)}});
    const int here = ExpectTheSame(run, job);
    EXPECT_GE(here, 1);
    kills += here;
    if (HasFailure()) return;
  }
  std::printf("%d kills, %d saves interrupted\n", kills, saves_interrupted_);
}

}  // namespace
}  // namespace shardgraph
