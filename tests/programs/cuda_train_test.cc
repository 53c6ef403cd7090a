// The programs on the CUDA double: a whole training run of two ranks, threads
// of this process, from flags to the run directory, and text from its
// checkpoint; beside the same on CPUs.
#include <cstdint>
#include <locale>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/files/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/store_server.h"
#include "nlohmann/json.hpp"
#include "tests/fake_cuda/control.h"
#include "tests/faults/small_run.h"
#include "tools/generate/generate.h"
#include "tools/runtime/runtime.h"
#include "tools/text/tokenizer.h"
#include "tools/train/train.h"

namespace shardgraph {
namespace {

constexpr int kRanks = 2;
constexpr int kSteps = 4;
constexpr char kToken[] = "cuda_train_test";

// Bytes; small: a thread of a GPU costs the double as much as a call of a
// function.
constexpr char kConfig[] =
    "model { gpt2 { vocab_size: 256 n_positions: 16 n_embd: 24 n_layer: 2\n"
    "  n_head: 3 initializer_range: 0.15 } }\n"
    "precision { compute: FP32 }\n"
    "optimizer { learning_rate: 0.01 }\n"
    "data { batch_size: 4 sequence_length: 8 micro_batch_size: 1 }\n"
    "evaluation { every: 2 }\n"
    "checkpoint { every: 2 }\n";

class CudaPrograms : public testing::Test {
 protected:
  CudaPrograms() : folder_(TestFolder()) {
    // Ranks are threads here: what the library's regular expressions look up
    // first is filled in before they start, not by two of them at once.
    const auto& characters = std::use_facet<std::ctype<char>>(std::locale());
    for (int c = 0; c < 256; ++c) characters.narrow(static_cast<char>(c), 0);
    fake_cuda::Reset({.seed = 3,
                      .devices = kRanks,
                      .check_communicator_order = true,
                      .collective_timeout = std::chrono::minutes(5)});
    fake_cuda::TakeReport();
    WriteText(folder_ + "/config.textproto", kConfig);
    for (const char* const file : {"/train.bin", "/val.bin"})
      WriteTokens(folder_ + file, SomeTokens(300));
    WriteText(folder_ + "/tokenizer.json", MakeByteTokenizer()->Description());
  }
  ~CudaPrograms() override {
    fake_cuda::Reset({});
    EXPECT_EQ(fake_cuda::TakeReport(), "");
  }

  // Of rank `rank` of a job that meets at `store`.
  static LaunchEnvironment Environment(int rank, const StoreServer& store) {
    LaunchEnvironment environment;
    environment.launcher = Launcher::kOwn;
    environment.rank = environment.local_rank = rank;
    environment.world_size = environment.local_world_size = kRanks;
    environment.store_host = "127.0.0.1";
    environment.store_port = store.port();
    environment.store_token = kToken;
    environment.store_prefix = "test/";
    return environment;
  }

  std::string RunDirectory(const std::string& name) const {
    return absl::StrCat(folder_, "/", name);
  }

  // What each rank's run returned, in a run directory named like the device or
  // as said.
  std::vector<absl::Status> Train(const std::string& device,
                                  std::vector<std::string> overrides,
                                  std::string directory = "") {
    if (directory.empty()) directory = device;
    std::vector<std::string> args = {
        absl::StrCat("--config=", folder_, "/config.textproto"),
        absl::StrCat("--run_dir=", RunDirectory(directory)),
        absl::StrCat("--device=", device), absl::StrCat("data.path=", folder_),
        "run.threads=1"};
    args.insert(args.end(), overrides.begin(), overrides.end());
    const absl::StatusOr<TrainFlags> flags = ParseTrainFlags(args);
    EXPECT_TRUE(flags.ok()) << flags.status();
    const absl::StatusOr<PreparedRun> run =
        PrepareRun(*flags, kRanks, /*local_ranks=*/kRanks);
    EXPECT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(run->config.run().device(), device);
    auto store = StoreServer::Start({.host = "127.0.0.1", .token = kToken});
    EXPECT_TRUE(store.ok()) << store.status();
    std::vector<absl::Status> statuses(kRanks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        statuses[rank] = RunRank(*run, Environment(rank, **store));
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  // By "loss 3" or "eval_loss 2", of a run's metrics.jsonl.
  std::map<std::string, double> Losses(const std::string& directory) const {
    std::map<std::string, double> losses;
    const std::string text =
        ReadText(RunDirectory(directory) + "/metrics.jsonl");
    for (const absl::string_view line :
         absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      const nlohmann::json metrics = ParseJson(std::string(line));
      for (const char* const name : {"loss", "eval_loss"}) {
        if (metrics.contains(name))
          losses[absl::StrCat(name, " ", metrics.at("step").get<int>())] =
              metrics.at(name);
      }
    }
    return losses;
  }

  std::string Continue(const std::string& run, const std::string& device) {
    const absl::StatusOr<GenerateFlags> flags =
        ParseGenerateFlags({absl::StrCat("--checkpoint=", RunDirectory(run)),
                            "--prompt=ab", "--max_tokens=6", "--temperature=0",
                            absl::StrCat("--device=", device)});
    EXPECT_TRUE(flags.ok()) << flags.status();
    std::string text;
    const absl::Status status =
        Generate(*flags, LaunchEnvironment(),
                 [&](int64_t, const std::string& piece) { text += piece; });
    EXPECT_TRUE(status.ok()) << status;
    return text;
  }

  const std::string folder_;
};

TEST_F(CudaPrograms, TrainAndGenerateAsOnTheCpu) {
  const std::vector<std::string> steps = {absl::StrCat("run.steps=", kSteps)};
  EXPECT_THAT(Train("cpu", steps),
              testing::Each(testing::Eq(absl::OkStatus())));
  EXPECT_THAT(Train("cuda", steps),
              testing::Each(testing::Eq(absl::OkStatus())));
  // Each phase runs once eagerly, then as a graph: two micro-batches and an
  // update a step, and evaluations.
  EXPECT_GE(fake_cuda::GetCalls()["cudaGraphLaunch"], kRanks * 3 * kSteps / 2);

  const std::map<std::string, double> cpu = Losses("cpu");
  const std::map<std::string, double> cuda = Losses("cuda");
  ASSERT_EQ(cpu.size(), static_cast<size_t>(kSteps + kSteps / 2));
  ASSERT_EQ(cuda.size(), cpu.size());
  for (const auto& [name, loss] : cpu)
    EXPECT_NEAR(cuda.at(name), loss, 1e-5) << name;
  EXPECT_LT(cuda.at("loss 4"), cuda.at("loss 1"));

  const std::string text = Continue("cuda", "cpu");
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(Continue("cuda", "cuda"), text);
}

TEST_F(CudaPrograms, GoOnFromACheckpointOfTheCpu) {
  EXPECT_THAT(Train("cpu", {"run.steps=2"}),
              testing::Each(testing::Eq(absl::OkStatus())));
  EXPECT_THAT(Train("cuda", {"run.steps=3",
                             absl::StrCat("--resume=", RunDirectory("cpu"))}),
              testing::Each(testing::Eq(absl::OkStatus())));
  EXPECT_THAT(Train("cpu", {"run.steps=3"}),
              testing::Each(testing::Eq(absl::OkStatus())));
  EXPECT_NEAR(Losses("cuda").at("loss 3"), Losses("cpu").at("loss 3"), 1e-5);
}

// By the target's figures; what is recomputed has the same bits.
TEST_F(CudaPrograms, RecomputeWhatFitsTheBudget) {
  EXPECT_THAT(Train("cuda", {"run.steps=2"}),
              testing::Each(testing::Eq(absl::OkStatus())));
  const std::vector<absl::Status> refused = Train(
      "cuda",
      {"run.steps=2", "shard.recompute=AUTO", "shard.memory_budget_bytes=1"},
      "refused");
  const std::string message(refused[0].message());
  const std::string words = "a rank needs ";
  const size_t at = message.find(words);
  ASSERT_NE(at, std::string::npos) << message;
  EXPECT_EQ(refused[1], refused[0]);
  const std::string least =
      absl::StrCat(std::stoll(message.substr(at + words.size())));
  EXPECT_THAT(Train("cuda",
                    {"run.steps=2", "shard.recompute=AUTO",
                     "shard.memory_budget_bytes=" + least},
                    "auto"),
              testing::Each(testing::Eq(absl::OkStatus())));
  const std::string choice =
      ReadText(RunDirectory("auto") + "/recompute.textproto");
  EXPECT_THAT(choice, testing::HasSubstr("pattern: "));
  EXPECT_THAT(choice, testing::HasSubstr("the target "));
  EXPECT_EQ(Losses("auto"), Losses("cuda"));
}

TEST_F(CudaPrograms, ChooseTheDevice) {
  const auto auto_two = ChooseDevice("auto", 2);
  ASSERT_TRUE(auto_two.ok()) << auto_two.status();
  EXPECT_EQ(auto_two->device, "cuda");
  EXPECT_EQ(auto_two->target, "h100");
  EXPECT_THAT(auto_two->note, testing::HasSubstr("no target for CUDA double"));
  const auto auto_three = ChooseDevice("auto", 3);
  ASSERT_TRUE(auto_three.ok()) << auto_three.status();
  EXPECT_EQ(auto_three->device, "cpu");
  EXPECT_THAT(auto_three->note,
              testing::HasSubstr("this host has 3 ranks and 2 GPUs"));
  EXPECT_THAT(std::string(ChooseDevice("cuda", 3).status().message()),
              testing::HasSubstr("at most one rank for each GPU"));
  EXPECT_EQ(ChooseDevice("cpu", 1)->device, "cpu");
  EXPECT_THAT(std::string(ChooseDevice("tpu", 1).status().message()),
              testing::HasSubstr("device is \"tpu\"; it must be auto, cpu or "
                                 "cuda"));

  fake_cuda::Reset({.devices = 0});
  EXPECT_EQ(ChooseDevice("auto", 1)->device, "cpu");
  const absl::Status none = ChooseDevice("cuda", 1).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(none.message()),
              testing::AllOf(testing::HasSubstr("no GPU: "),
                             testing::HasSubstr("--device=cpu")));
}

}  // namespace
}  // namespace shardgraph
