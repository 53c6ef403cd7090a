// Training on the CUDA backend over the CUDA double: all kernels, NCCL's
// communicators, one graph per phase, ranks as threads.

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "graph/fusion.h"
#include "graph/step_link.h"
#include "gtest/gtest.h"
#include "kernels/collective/nccl.h"
#include "kernels/collective/store.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/reference/kernels.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tests/fake_cuda/control.h"
#include "tests/harness/training_run.h"
#include "tests/parity/overflows.h"
#include "tests/parity/parity.h"

namespace shardgraph {
namespace {

using AfterStep = std::function<void(int rank, int64_t step, Executor& executor,
                                     const TrainingPlan& plan)>;

// What the double finds is a failure. `options`: what the run is to be but for
// its device. `cudnn_calls`: how often attention was cuDNN's.
TrainingRunResult RunOnDouble(const TrainConfig& config, int world_size,
                              fake_cuda::Options world,
                              TrainingRunOptions options,
                              int64_t* cudnn_calls = nullptr) {
  world.devices = world_size;
  fake_cuda::Reset(world);
  fake_cuda::TakeReport();
  InProcessStore store;
  options.world_size = world_size;
  options.kernels = &CudaKernels();
  options.target.set_name("double");
  options.target.set_lanes(2);
  options.target.set_buffer_alignment(256);
  options.target.set_window_alignment(4096);
  for (const std::string& name : FusionsByTarget())
    options.target.add_fusions(name);
  // Scratch for cuBLASLt: enough for parts of long sums. FP16 has F32 copies.
  (*options.target.mutable_workspace_budget())["matmul"] =
      config.precision().compute() == FP16 ? 65536 : 16384;
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
  std::vector<int> all_ranks(world_size), agreements(world_size);
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  options.agree = [&](int rank, bool mine) -> absl::StatusOr<bool> {
    SG_ASSIGN_OR_RETURN(
        const auto all,
        ExchangeThroughStore(store, absl::StrCat("agree ", agreements[rank]++),
                             rank, all_ranks, mine ? "yes" : "no",
                             absl::Seconds(60)));
    return std::find(all.begin(), all.end(), "no") == all.end();
  };
  auto run = RunTraining(config, options);
  EXPECT_TRUE(run.ok()) << run.status();
  EXPECT_GT(fake_cuda::GetMatmuls().size(), 0u);
  if (cudnn_calls != nullptr)
    *cudnn_calls = fake_cuda::GetCalls()["cudnn attention"];
  fake_cuda::Reset({});
  EXPECT_EQ(fake_cuda::TakeReport(), "");
  return run.ok() ? *std::move(run) : TrainingRunResult();
}

TrainingRunResult RunOnDouble(const TrainConfig& config, int world_size,
                              fake_cuda::Options world, AfterStep after_step) {
  TrainingRunOptions options;
  options.after_step = std::move(after_step);
  return RunOnDouble(config, world_size, world, std::move(options));
}

TrainingRunResult RunOnDouble(const TrainConfig& config, int world_size,
                              uint64_t seed) {
  return RunOnDouble(config, world_size, fake_cuda::Options{.seed = seed},
                     AfterStep());
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

// What follows and goes with the products of a lowered step is cuBLASLt's.
TEST(CudaDoubleEpilogues, ArePartOfTheStep) {
  std::map<int, int64_t> products;  // by epilogue
  const auto count = [&](int, int64_t, Executor&, const TrainingPlan&) {
    products.clear();
    for (const fake_cuda::MatmulCall& call : fake_cuda::GetMatmuls())
      ++products[call.epilogue];
  };
  const TrainConfig config = Config(kGpt2, 6, 1, {"run.capture=false"});
  const TrainingRunResult fused =
      RunOnDouble(config, 1, fake_cuda::Options(), count);
  // Two layers, each with four products that have a bias; one with GELU.
  EXPECT_EQ(products[CUBLASLT_EPILOGUE_GELU_AUX_BIAS], 2);
  EXPECT_EQ(products[CUBLASLT_EPILOGUE_DGELU], 2);
  EXPECT_EQ(products[CUBLASLT_EPILOGUE_BGRADA], 8);
  EXPECT_EQ(products[CUBLASLT_EPILOGUE_BIAS], 6);
  TrainConfig composed = config;
  composed.mutable_run()->add_unfused("all");
  ExpectSame(RunOnDouble(composed, 1, fake_cuda::Options(), count), fused);
  EXPECT_EQ(products[CUBLASLT_EPILOGUE_BIAS], 8);
  EXPECT_EQ(products[CUBLASLT_EPILOGUE_BGRADA], 0);
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

// A piece is kept for backward by a copy on the device, captured like the rest.
TEST_P(CudaDouble, ReshardsToFewerRanks) {
  if (!Long() && GetParam() == kGpt2) GTEST_SKIP() << "in the long form";
  TrainingRunOptions options;
  options.kernels = &ReferenceKernels();
  const auto reference = RunTraining(Config(GetParam(), 6, 2), options);
  ASSERT_TRUE(reference.ok()) << reference.status();
  ExpectSame(
      RunOnDouble(Config(GetParam(), 1, 2, {"shard.reshard_group_size=2"}), 4,
                  1),
      *reference);
}

// Losses of BF16 differ between kernels by roundings that flip. Attention as
// cuDNN takes it: no dropout, heads a multiple of 8 wide.
TEST_P(CudaDouble, TrainsInBf16) {
  constexpr int kSteps = 3;
  std::vector<std::string> bf16 = {"precision.compute=BF16"};
  if (GetParam() == kGpt2) {
    bf16.push_back("model.gpt2.attn_pdrop=0");
  } else {
    bf16.push_back("model.llama.attention_dropout=0");
    bf16.push_back("model.llama.hidden_size=32");
  }
  TrainingRunOptions options;
  options.kernels = &ReferenceKernels();
  const auto reference =
      RunTraining(Config(GetParam(), 6, kSteps, bf16), options);
  ASSERT_TRUE(reference.ok()) << reference.status();
  int64_t cudnn_calls = 0;
  const TrainingRunResult run = RunOnDouble(Config(GetParam(), 3, kSteps, bf16),
                                            2, fake_cuda::Options{.seed = 1},
                                            TrainingRunOptions(), &cudnn_calls);
  EXPECT_GT(cudnn_calls, 0);
  ASSERT_EQ(run.losses.size(), reference->losses.size());
  for (int step = 0; step < kSteps; ++step)
    EXPECT_NEAR(run.losses[step], reference->losses[step], 1e-2)
        << "step " << step;
}

// Products in FP16 run by way of F32, which rounds elsewhere.
TEST_P(CudaDouble, TrainsInFp16) {
  constexpr int kSteps = 3;
  if (!Long() && GetParam() == kGpt2) GTEST_SKIP() << "in the long form";
  const std::vector<std::string> fp16 = {"precision.compute=FP16"};
  TrainingRunOptions options;
  options.kernels = &ReferenceKernels();
  const auto reference =
      RunTraining(Config(GetParam(), 6, kSteps, fp16), options);
  ASSERT_TRUE(reference.ok()) << reference.status();
  const TrainingRunResult run =
      RunOnDouble(Config(GetParam(), 3, kSteps, fp16), 2, 1);
  ASSERT_EQ(run.losses.size(), reference->losses.size());
  for (int step = 0; step < kSteps; ++step)
    EXPECT_NEAR(run.losses[step], reference->losses[step], 1e-2)
        << "step " << step;
}

// The first steps of the fixture: two overflows in a row, a growth, one more.
TEST(CudaDoubleLossScale, FollowsGradScaler) {
  Overflows run = Overflows::OfGradScaler(
      {"model.gpt2.n_embd=24", "model.gpt2.n_layer=1", "data.batch_size=2",
       "data.micro_batch_size=1", "data.sequence_length=8",
       Long() ? "run.steps=40" : "run.steps=13"});
  const TrainingRunResult result = RunOnDouble(
      run.config(), 2, fake_cuda::Options{.seed = 1}, run.options());
  EXPECT_EQ(result.losses.size(), Long() ? 40u : 13u);
}

// Moments rounded by chance are off by a unit where FP32 values differ in their
// last bit, which is rare.
TEST_P(CudaDouble, WhatIsTrainedAndHowIsAsOnTheReference) {
  const bool gpt2 = GetParam() == kGpt2;
  const std::vector<std::vector<std::string>> choices = {
      {"optimizer.kind=ADAM", "precision.moments=BF16",
       "optimizer.learning_rate=1e-2", "loss.label_smoothing=0.1"},
      {"optimizer.kind=SGD", "optimizer.momentum=0.9"},
      {"optimizer.kind=LION", "precision.moments=BF16",
       "optimizer.learning_rate=1e-3"},
      {"optimizer.kind=ADAMW", "optimizer.learning_rate=1e-2",
       "loss.z_loss=1e-3", "model.lora.modules=.*(q_proj|down_proj|c_attn)",
       "model.lora.dropout=0.1", "model.lora.alpha=16"},
  };
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!Long() && gpt2 != (i < 2)) continue;
    SCOPED_TRACE(choices[i][0]);
    TrainingRunOptions options;
    options.kernels = &ReferenceKernels();
    const auto reference =
        RunTraining(Config(GetParam(), 6, 3, choices[i]), options);
    ASSERT_TRUE(reference.ok()) << reference.status();
    const TrainingRunResult run =
        RunOnDouble(Config(GetParam(), 3, 3, choices[i]), 2, 1);
    ASSERT_EQ(run.losses.size(), 3u);
    for (int step = 0; step < 3; ++step)
      EXPECT_NEAR(run.losses[step], reference->losses[step], 1e-4) << step;
  }
}

// Data, state, markers and reports go through memory that both sides reach.
TEST(CudaDoubleStep, AReplayedStepCallsNothingElse) {
  const int steps = StepLink::kReports + 2;
  std::map<std::string, int64_t> before, after;
  std::vector<double> reported(steps);
  const TrainingRunResult run = RunOnDouble(
      Config(kGpt2, 1, steps), 1, fake_cuda::Options(),
      [&](int, int64_t step, Executor& executor, const TrainingPlan&) {
        if (step == steps - 4) before = fake_cuda::GetCalls();
        if (step == steps - 2) after = fake_cuda::GetCalls();
        EXPECT_EQ(executor.EagerReason(), "");
        StepState state;
        ASSERT_TRUE(executor.ReadReport(step, &state, sizeof(state)).ok());
        reported[step] = state.loss_sum / state.token_count;
        if (step + 1 < steps) return;
        // The planted mistake: a reader that comes too late.
        const absl::Status late = executor.ReadReport(0, &state, sizeof(state));
        EXPECT_EQ(late.code(), absl::StatusCode::kOutOfRange);
        EXPECT_THAT(std::string(late.message()),
                    testing::HasSubstr("report 0 was overwritten"));
      });
  EXPECT_EQ(reported, run.losses);
  for (const auto& [name, count] : before) after[name] -= count;
  // Six micro-batches and an update, twice.
  EXPECT_EQ(after["cudaGraphLaunch"], 2 * 7);
  after.erase("cudaGraphLaunch");
  // One for the inputs of each micro-batch: those of the first are uploaded
  // ahead, and are what it is given in the end.
  EXPECT_EQ(after["cudaMemcpyAsync"], 2 * 6);
  after.erase("cudaMemcpyAsync");
  EXPECT_GT(after["cudaStreamQuery"], 0);
  after.erase("cudaStreamQuery");
  std::erase_if(after, [](const auto& call) { return call.second == 0; });
  EXPECT_THAT(after, testing::IsEmpty());
}

// Inputs that were uploaded ahead and are not those of the step.
TEST(CudaDoubleStep, AWrongGuessChangesNothing) {
  const TrainConfig config = Config(kGpt2, 1, 4);
  const TrainingRunResult plain = RunOnDouble(config, 2, uint64_t{1});
  const TrainingRunResult misled = RunOnDouble(
      config, 2, fake_cuda::Options{.seed = 1},
      [&](int, int64_t, Executor& executor, const TrainingPlan& plan) {
        EXPECT_TRUE(executor
                        .Ahead(plan.plan.graph.FindPhase("micro"),
                               [&] {
                                 const int64_t step = 77;
                                 return executor.Stage(
                                     plan.state, offsetof(StepState, run_step),
                                     &step, sizeof(step));
                               })
                        .ok());
      });
  EXPECT_EQ(misled.losses, plain.losses);
  EXPECT_EQ(misled.weights, plain.weights);
}

// While a replay is on its way, the markers say where each lane stands.
TEST(CudaDoubleStep, MarkersSayWhereAReplayStands) {
  constexpr int kSteps = 2;
  std::string seen;
  int64_t advances = 0;
  RunOnDouble(
      Config(kGpt2, 1, kSteps), 2, fake_cuda::Options{.seed = 2},
      [&](int rank, int64_t step, Executor& executor,
          const TrainingPlan& plan) {
        if (step + 1 < kSteps) return;
        const std::string idle = executor.Progress();
        EXPECT_EQ(idle, "lane 0: waits or is done\nlane 1: waits or is done\n");
        // Only the double's own stream makes it go on.
        cudaStream_t stream = nullptr;
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        ASSERT_TRUE(executor.Enqueue(plan.plan.graph.FindPhase("micro")).ok());
        int64_t advance = executor.Advance();
        bool begun = false;
        for (std::string now; !begun || now != idle;) {
          cudaStreamQuery(stream);
          now = executor.Progress();
          begun = begun || now != idle;
          if (rank != 0) continue;
          if (executor.Advance() != advance) ++advances;
          advance = executor.Advance();
          seen += now;
        }
        cudaStreamDestroy(stream);
      });
  EXPECT_THAT(seen, testing::HasSubstr("lane 0: at or behind phase micro, unit "
                                       "\"transformer.h.1\""));
  EXPECT_THAT(seen, testing::HasSubstr("= all_gather("));
  EXPECT_THAT(seen, testing::HasSubstr("= reduce_scatter("));
  EXPECT_GT(advances, 5);
}

// Without graphs steps run eagerly, to the same numbers, and say why.
TEST(CudaDoubleStep, RunsEagerlyWhereNothingCanBeCaptured) {
  const TrainConfig config = Config(kGpt2, 3, 3);
  const TrainingRunResult captured = RunOnDouble(config, 1, uint64_t{0});
  std::string reason;
  const TrainingRunResult eager = RunOnDouble(
      config, 1,
      fake_cuda::Options{.refuses_capture = [](int) { return true; }},
      [&](int, int64_t, Executor& executor, const TrainingPlan&) {
        reason = executor.EagerReason();
      });
  EXPECT_EQ(eager.losses, captured.losses);
  EXPECT_EQ(eager.weights, captured.weights);
  EXPECT_THAT(reason, testing::HasSubstr("capturing phase micro failed: "));
  EXPECT_THAT(reason, testing::HasSubstr("CaptureUnsupported"));
}

// One rank cannot capture its second phase: then none replays anything.
TEST(CudaDoubleStep, RanksAgreeOnCapturing) {
  const TrainConfig config = Config(kGpt2, 3, 3);
  const TrainingRunResult captured = RunOnDouble(config, 2, uint64_t{0});
  int captures = 0;  // of device 1
  std::string reasons[2];
  int64_t graph_launches = -1;
  const TrainingRunResult eager = RunOnDouble(
      config, 2,
      fake_cuda::Options{
          .refuses_capture =
              [&](int device) { return device == 1 && ++captures == 2; }},
      [&](int rank, int64_t step, Executor& executor, const TrainingPlan&) {
        reasons[rank] = executor.EagerReason();
        if (rank == 0 && step == 2)
          graph_launches = fake_cuda::GetCounters().graph_launches;
      });
  EXPECT_EQ(eager.losses, captured.losses);
  EXPECT_EQ(eager.weights, captured.weights);
  EXPECT_EQ(captures, 2);
  EXPECT_EQ(graph_launches, 0);
  EXPECT_EQ(reasons[0], "another rank could not capture phase update");
  EXPECT_THAT(reasons[1],
              testing::HasSubstr("capturing phase update failed: "));
}

INSTANTIATE_TEST_SUITE_P(Models, CudaDouble, ::testing::Values(kGpt2, kLlama),
                         [](const auto& info) {
                           return info.index == 0 ? "Gpt2" : "Llama";
                         });

}  // namespace
}  // namespace shardgraph
