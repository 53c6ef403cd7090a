// trace.json of a run as a user makes it: every node of the plan, of both
// ranks, in the steps that were asked for.
#include <filesystem>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/faults/process.h"
#include "tests/faults/small_run.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Counts = std::map<std::string, int>;  // nodes by op

// By phase, from the schedules of a plan.txt.
std::map<std::string, Counts> NodesOf(const std::string& plan) {
  std::map<std::string, Counts> nodes;
  std::string phase;
  for (absl::string_view line : absl::StrSplit(plan, '\n')) {
    if (!absl::StartsWith(line, " ")) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      phase = words[0] == "schedule" ? words[1] : "";
    } else if (!phase.empty()) {
      const size_t equals = line.find(" = ") + 3;
      ++nodes[phase][std::string(line.substr(equals, line.find('(') - equals))];
    }
  }
  return nodes;
}

class TraceTest : public testing::Test {
 protected:
  TraceTest() : folder_(TestFolder()) {
    WriteText(folder_ + "/config.textproto", SmallConfig());
    WriteTokens(folder_ + "/tokens.bin", SomeTokens(5000));
  }

  std::string Train(std::vector<std::string> overrides) {
    std::vector<std::string> arguments = {
        absl::StrCat("--config=", folder_, "/config.textproto"), "--nproc=2",
        absl::StrCat("--run_dir=", folder_, "/run"),
        absl::StrCat("data.path=", folder_, "/tokens.bin")};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    Process process("tools/train/train", arguments);
    EXPECT_EQ(process.Wait(), 0) << process.output();
    return process.output();
  }

  // Runs of nodes by (rank, step, phase) and op.
  std::map<std::tuple<int, int, std::string>, Counts> Runs() const {
    std::map<std::tuple<int, int, std::string>, Counts> runs;
    const json trace = ParseJson(ReadText(folder_ + "/run/trace.json"));
    for (const json& event : trace.at("traceEvents")) {
      if (event.at("ph") != "X" || event.at("cat") == "host") continue;
      EXPECT_GE(event.at("dur"), 0);
      ++runs[{event.at("pid"), event.at("args").at("step"), event.at("cat")}]
            [event.at("name").get<std::string>()];
    }
    return runs;
  }

  const std::string folder_;
};

TEST_F(TraceTest, HoldsEveryNodeOfAllRanks) {
  EXPECT_THAT(
      Train({"run.trace_steps=2", "run.trace_first_step=3", "run.steps=5"}),
      testing::HasSubstr(
          absl::StrCat("steps 3 to 4 are in ", folder_, "/run/trace.json")));
  std::map<std::string, Counts> plan =
      NodesOf(ReadText(folder_ + "/run/plan.txt"));
  constexpr int kMicroBatches = 3;
  for (auto& [op, count] : plan["micro"]) count *= kMicroBatches;
  EXPECT_GT(plan["micro"]["matmul"], 0);
  EXPECT_GT(plan["update"]["adamw"], 0);
  const auto runs = Runs();
  EXPECT_EQ(runs.size(), 2u * 2 * 2);
  for (int rank = 0; rank < 2; ++rank) {
    for (int step = 3; step <= 4; ++step) {
      for (const char* phase : {"micro", "update"}) {
        EXPECT_EQ(runs.at({rank, step, phase}), plan[phase])
            << "rank " << rank << ", step " << step << ", phase " << phase;
      }
    }
  }
}

// Without a number of a step: the last ones of a run that is short, and the
// same of one that goes on.
TEST_F(TraceTest, TakesStepsOfThisRun) {
  Train({"run.trace_steps=1", "run.steps=2"});
  EXPECT_TRUE(Runs().contains({1, 2, "micro"}));
  Train({"run.trace_steps=1", "run.steps=4"});
  EXPECT_TRUE(Runs().contains({0, 4, "update"}));
  EXPECT_EQ(Runs().size(), 2u * 2);
}

TEST_F(TraceTest, IsNotThereUnlessAskedFor) {
  Train({"run.steps=1"});
  EXPECT_FALSE(fs::exists(folder_ + "/run/trace.json"));
}

}  // namespace
}  // namespace shardgraph
