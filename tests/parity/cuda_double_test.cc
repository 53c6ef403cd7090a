// Training on the CUDA backend over the CUDA double: all kernels, NCCL's
// communicators, one graph per phase, ranks as threads.

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/collective/nccl.h"
#include "kernels/collective/store.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/reference/kernels.h"
#include "kernels/status_macros.h"
#include "tests/fake_cuda/control.h"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

// What the double finds is a failure.
TrainingRunResult RunOnDouble(const TrainConfig& config, int world_size,
                              uint64_t seed) {
  fake_cuda::Reset({.seed = seed, .devices = world_size});
  fake_cuda::TakeReport();
  InProcessStore store;
  TrainingRunOptions options;
  options.world_size = world_size;
  options.kernels = &CudaKernels();
  options.world = [&store](int size) {
    std::vector<std::unique_ptr<CommunicatorFactory>> factories;
    for (int rank = 0; rank < size; ++rank)
      factories.push_back(
          *MakeNcclFactory(store, {.rank = rank, .size = size}));
    return factories;
  };
  options.backend =
      [](CommunicatorFactory& factory,
         std::function<absl::StatusOr<void*>(int64_t bytes)> allocate) {
        return MakeCudaBackend({.kernels = &CudaKernels(),
                                .device = factory.rank(),
                                .allocate = std::move(allocate)});
      };
  auto run = RunTraining(config, options);
  EXPECT_TRUE(run.ok()) << run.status();
  fake_cuda::Reset({});
  EXPECT_EQ(fake_cuda::TakeReport(), "");
  return run.ok() ? *std::move(run) : TrainingRunResult();
}

// Small: a thread of a GPU costs the double as much as a call of a function.
constexpr char kGpt2[] =
    "gpt2 { vocab_size: 67 n_positions: 8 n_embd: 24 n_layer: 2 n_head: 3 "
    "resid_pdrop: 0.1 embd_pdrop: 0.1 attn_pdrop: 0.1 "
    "initializer_range: 0.15 }";
constexpr char kLlama[] =
    "llama { vocab_size: 67 hidden_size: 24 intermediate_size: 37 "
    "num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 "
    "max_position_embeddings: 8 attention_dropout: 0.1 "
    "initializer_range: 0.15 }";

bool Long() { return std::getenv("CUDA_DOUBLE_LONG") != nullptr; }

TrainConfig Config(const char* model, int64_t micro_batch_size, int steps,
                   std::vector<std::string> overrides = {}) {
  overrides.push_back("data.batch_size=6");
  overrides.push_back("data.sequence_length=8");
  overrides.push_back("run.steps=" + std::to_string(steps));
  return ParityConfig(model, micro_batch_size, overrides);
}

class CudaDouble : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaDouble, TrainsAsTheReferenceDoes) {
  const int steps = Long() ? 20 : 4;
  TrainingRunOptions options;
  options.kernels = &ReferenceKernels();
  const auto reference = RunTraining(Config(GetParam(), 6, steps), options);
  ASSERT_TRUE(reference.ok()) << reference.status();
  for (const int world_size : {1, 2, 3}) {
    SCOPED_TRACE("world " + std::to_string(world_size));
    ExpectSame(RunOnDouble(Config(GetParam(), 6 / world_size, steps),
                           world_size, world_size),
               *reference);
  }
}

// The same bits with whatever interleaving of streams and ranks, captured or
// eager, and with what changes the plan but not the numbers.
TEST_P(CudaDouble, OrderCaptureAndPlanChangeNothing) {
  constexpr int kSteps = 2;
  const TrainingRunResult first =
      RunOnDouble(Config(GetParam(), 1, kSteps), 2, 0);
  const std::vector<std::vector<std::string>> choices = {
      {"run.capture=false"},
      {"shard.recompute=FULL"},
      {"shard.reshard_after_forward=false"},
  };
  const uint64_t seeds = Long() ? 50 : choices.size();
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const std::vector<std::string>& choice = choices[seed % choices.size()];
    SCOPED_TRACE("seed " + std::to_string(seed) + ", " + choice[0]);
    const TrainingRunResult run =
        RunOnDouble(Config(GetParam(), 1, kSteps, choice), 2, seed);
    EXPECT_EQ(run.losses, first.losses);
    EXPECT_EQ(run.weights, first.weights);
  }
}

// Sums over two ranks have one order.
TEST_P(CudaDouble, StrategiesGiveTheSameBits) {
  constexpr int kSteps = 2;
  const bool gpt2 = GetParam() == kGpt2;
  for (const std::string reduce :
       {"precision.reduce=FP32", "precision.reduce=BF16"}) {
    if (!Long() && gpt2 != (reduce == "precision.reduce=FP32")) continue;
    const TrainingRunResult first =
        RunOnDouble(Config(GetParam(), 1, kSteps, {reduce}), 2, 0);
    const std::vector<std::vector<std::string>> choices = {
        {"shard.strategy=SHARD_GRAD_OP"},
        {"shard.strategy=ZERO1"},
        {"shard.strategy=NO_SHARD"},
        {"shard.strategy=HYBRID", "shard.shard_group_size=1"},
    };
    for (std::vector<std::string> choice : choices) {
      SCOPED_TRACE(choice[0] + " " + reduce);
      choice.push_back(reduce);
      const TrainingRunResult run =
          RunOnDouble(Config(GetParam(), 1, kSteps, choice), 2, 1);
      EXPECT_EQ(run.losses, first.losses);
      EXPECT_EQ(run.weights, first.weights);
    }
  }
}

// Losses of BF16 differ between kernels by roundings that flip.
TEST_P(CudaDouble, TrainsInBf16) {
  constexpr int kSteps = 3;
  const std::vector<std::string> bf16 = {"precision.compute=BF16"};
  TrainingRunOptions options;
  options.kernels = &ReferenceKernels();
  const auto reference =
      RunTraining(Config(GetParam(), 6, kSteps, bf16), options);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const TrainingRunResult run =
      RunOnDouble(Config(GetParam(), 3, kSteps, bf16), 2, 1);
  ASSERT_EQ(run.losses.size(), reference->losses.size());
  for (int step = 0; step < kSteps; ++step)
    EXPECT_NEAR(run.losses[step], reference->losses[step], 1e-2)
        << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDouble, ::testing::Values(kGpt2, kLlama),
                         [](const auto& info) {
                           return info.index == 0 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace shardgraph
