// Training on a GPU beside the same on the CPU: one rank, all kernels, graphs.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "graph/fusion.h"
#include "gtest/gtest.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/kernels.h"
#include "tests/harness/training_run.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

TrainingRunResult RunOnGpu(const TrainConfig& config) {
  TrainingRunOptions options;
  options.kernels = &CudaKernels();
  for (const std::string& name : FusionsByTarget())
    options.target.add_fusions(name);
  options.backend = [](CommunicatorFactory&, auto) {
    return MakeCudaBackend({.kernels = &CudaKernels()});
  };
  options.after_step = [](int, int64_t, Executor& executor,
                          const TrainingPlan&) {
    EXPECT_EQ(executor.EagerReason(), "");
  };
  auto run = RunTraining(config, options);
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *std::move(run) : TrainingRunResult();
}

TrainingRunResult RunOnCpu(const TrainConfig& config) {
  auto run = RunTraining(config, {});
  EXPECT_TRUE(run.ok()) << run.status();
  return run.ok() ? *std::move(run) : TrainingRunResult();
}

class Training : public testing::TestWithParam<const char*> {};

TEST_P(Training, Fp32IsThatOfTheCpu) {
  const TrainConfig config = ParityConfig(GetParam(), 6);
  ExpectSame(RunOnGpu(config), RunOnCpu(config));
}

TEST_P(Training, CapturedIsEager) {
  const TrainingRunResult captured = RunOnGpu(ParityConfig(GetParam(), 4));
  for (const char* const choice :
       {"run.capture=false", "shard.recompute=FULL"}) {
    SCOPED_TRACE(choice);
    const TrainingRunResult other =
        RunOnGpu(ParityConfig(GetParam(), 4, {choice}));
    EXPECT_EQ(other.losses, captured.losses);
    EXPECT_EQ(other.weights, captured.weights);
  }
}

// Roundings that flip between kernels move losses by little.
TEST_P(Training, Bf16IsNearThatOfTheCpu) {
  const TrainConfig config =
      ParityConfig(GetParam(), 6, {"precision.compute=BF16"});
  const TrainingRunResult gpu = RunOnGpu(config), cpu = RunOnCpu(config);
  ASSERT_EQ(gpu.losses.size(), cpu.losses.size());
  for (size_t step = 0; step < gpu.losses.size(); ++step)
    EXPECT_NEAR(gpu.losses[step], cpu.losses[step], 2e-2) << "step " << step;
}

INSTANTIATE_TEST_SUITE_P(Models, Training,
                         testing::Values(kParityGpt2, kParityLlama),
                         [](const auto& info) {
                           return info.index == 0 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace shardgraph
