// What the engine costs beside the kernels: plans run with kernels that do
// nothing. Counter per_node: wall time of a run over the nodes in it.
//
//   bazel run //tools:bench -- --benchmark_filter=Executor
//
// ExecutorChain: nodes that each wait for the one before; with two lanes every
// edge crosses lanes. ExecutorPhase: the micro-batch phase of a preset.
// ExecutorTrain: whole steps as `train` runs them: batches from a token file,
// step state, micro-batches, the update, metrics.jsonl, TensorBoard events and
// the progress line.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "fsdp/config/train_config.h"
#include "fsdp/data/batches.h"
#include "fsdp/data/token_file.h"
#include "fsdp/train/metrics_jsonl.h"
#include "fsdp/train/progress.h"
#include "fsdp/train/tensorboard.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_plan.h"
#include "graph/builder.h"
#include "graph/executor.h"
#include "graph/passes.h"
#include "kernels/check.h"
#include "kernels/cpu/backend.h"
#include "kernels/status_macros.h"
#include "tools/bench/null_device.h"
#include "tools/presets/presets.h"

namespace shardgraph {
namespace {

constexpr int kWorldSize = 2;

template <typename T>
T Must(absl::StatusOr<T> value) {
  SG_CHECK_OK(value);
  return *std::move(value);
}

TargetSpec Target(int lanes) {
  TargetSpec target;
  target.set_name("bench");
  target.set_lanes(lanes);
  target.set_buffer_alignment(256);
  target.set_window_alignment(4096);
  return target;
}

// An executor on a CPU backend whose kernels do nothing.
struct NullExecutor {
  NullExecutor(const StepPlan& plan, ExecutorOptions options)
      : communicators(MakeNullCommunicators(kWorldSize)),
        backend(Must(MakeCpuBackend({.kernels = &NullKernels()}))) {
    options.backend = backend.get();
    options.communicators = communicators.get();
    executor = Must(Executor::Create(plan, options));
  }

  std::unique_ptr<CommunicatorFactory> communicators;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Executor> executor;
};

void RunPhase(benchmark::State& state, const StepPlan& plan, PhaseId phase,
              Executor& executor) {
  for (int i = 0; i < 3; ++i) SG_CHECK_OK(executor.Run(phase));  // captured
  for (auto _ : state) SG_CHECK_OK(executor.Run(phase));
  const int64_t nodes = plan.graph.phases[phase].nodes.size();
  state.counters["nodes"] = static_cast<double>(nodes);
  state.counters["per_node"] = benchmark::Counter(
      static_cast<double>(state.iterations() * nodes),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

// all_reduce and relu in turn over one small value.
StepPlan ChainPlan(int lanes) {
  constexpr int kPairs = 500;
  StepPlan plan;
  plan.target = "bench";
  plan.num_lanes = lanes;
  plan.graph.groups = {{"world", kWorldSize, 1}};
  GraphBuilder b(&plan.graph);
  b.SetPhase("chain");
  ValueId x = b.Emit1("relu", {b.Input("x", TensorType(DType::kF32, {64}))});
  for (int i = 0; i < kPairs; ++i) {
    x = b.Emit1("all_reduce", {x},
                Attributes()
                    .SetString(kGroupAttribute, "world")
                    .SetInt("size", kWorldSize));
    x = b.Emit1("relu", {x});
  }
  plan.graph.outputs["y"] = x;
  plan.schedules = Must(Schedule(plan.graph, Target(lanes), {}));
  plan.memory = Must(PlanMemory(plan.graph, plan.schedules));
  SG_CHECK_OK(Verify(plan));
  return plan;
}

void ExecutorChain(benchmark::State& state) {
  const StepPlan plan = ChainPlan(static_cast<int>(state.range(0)));
  NullExecutor run(plan, {.capture = state.range(1) != 0});
  RunPhase(state, plan, 0, *run.executor);
}

// A preset as `train` sets it up, on rank 0 of two ranks.
struct PresetRun {
  PresetRun(const std::string& preset, int lanes)
      : config(Must(LoadConfig(preset, {}))) {
    const auto model = Must(MakeModel(config.model()));
    ResolveTrainConfig(model->max_positions(), kWorldSize, &config);
    PlanRequest request;
    request.config = &config;
    request.world_size = kWorldSize;
    request.target = Target(lanes);
    plan = Must(MakeTrainingPlan(request));
    ExecutorOptions options;
    options.capture = config.run().capture();
    ReportSteps(*plan, &options);
    run = std::make_unique<NullExecutor>(plan->plan, options);
  }

  TrainConfig config;
  std::unique_ptr<TrainingPlan> plan;
  std::unique_ptr<NullExecutor> run;
};

PresetRun& RunOf(const std::string& preset, int lanes) {
  static auto* const runs =
      new std::map<std::pair<std::string, int>, std::unique_ptr<PresetRun>>();
  auto& run = (*runs)[{preset, lanes}];
  if (run == nullptr) run = std::make_unique<PresetRun>(preset, lanes);
  return *run;
}

void ExecutorPhase(benchmark::State& state, const std::string& preset) {
  PresetRun& run = RunOf(preset, static_cast<int>(state.range(0)));
  const StepPlan& plan = run.plan->plan;
  RunPhase(state, plan, plan.graph.FindPhase("micro"), *run.run->executor);
}

// Removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name =
        (std::filesystem::temp_directory_path() / "bench.XXXXXX").string();
    SG_CHECK(mkdtemp(name.data()) != nullptr) << "cannot make " << name;
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  std::string File(absl::string_view name) const {
    return absl::StrCat(path_, "/", name);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void WriteTokens(const std::string& path) {
  std::vector<int32_t> tokens(1 << 20);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = i * 7919 % 251;
  auto writer = Must(TokenFileWriter::Create(path, 256));
  SG_CHECK_OK(writer->Append(tokens));
  SG_CHECK_OK(writer->Close());
}

void ExecutorTrain(benchmark::State& state, const std::string& preset) {
  PresetRun& run = RunOf(preset, static_cast<int>(state.range(0)));
  const StepPlan& plan = run.plan->plan;
  const DataSpec& data = run.config.data();
  TemporaryFolder folder;
  WriteTokens(folder.File("train.bin"));
  const auto tokens = Must(TokenMix::Open({{folder.path(), 1}}, "train.bin",
                                          data.sequence_length(),
                                          run.plan->model->vocab_size()));
  const auto jsonl =
      Must(MetricsJsonl::Open(folder.File("metrics.jsonl"), /*steps_done=*/0));
  const auto events =
      Must(TensorBoardWriter::Open(folder.path(), /*steps_done=*/0));
  std::FILE* const console =
      std::fopen(folder.File("progress.txt").c_str(), "w");
  SG_CHECK(console != nullptr);
  TrainConfig config = run.config;
  ProgressOptions progress;
  progress.file = console;
  progress.steps = config.run().steps();
  progress.log_every = config.run().log_every();
  auto line = std::make_unique<ProgressLine>(progress);

  TrainerOptions options;
  options.config = &config;
  options.plan = run.plan.get();
  options.executor = run.run->executor.get();
  options.world_size = kWorldSize;
  const BatchShape shape = {data.batch_size(), data.micro_batch_size(),
                            kWorldSize, /*rank=*/0};
  options.training = [&](int64_t step, int64_t micro, Batch* batch) {
    return TrainingBatch(*tokens, shape, config.run().seed(), step, micro,
                         batch);
  };
  options.metrics = {jsonl.get(), events.get(), line.get()};
  Trainer trainer(options);
  int64_t done = 0;
  const auto train = [&](int64_t steps) {
    config.mutable_run()->set_steps(done + steps);
    SG_CHECK_OK(trainer.Train(done));
    done += steps;
  };
  train(3);  // captured
  for (auto _ : state) train(1);
  const int64_t micro_batches = MicroBatches(data, kWorldSize);
  const auto nodes_of = [&](const char* phase) -> int64_t {
    return plan.graph.phases[plan.graph.FindPhase(phase)].nodes.size();
  };
  const int64_t nodes = micro_batches * nodes_of("micro") + nodes_of("update");
  state.counters["nodes"] = static_cast<double>(nodes);
  state.counters["micro_batches"] = static_cast<double>(micro_batches);
  state.counters["per_node"] = benchmark::Counter(
      static_cast<double>(state.iterations() * nodes),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  line.reset();
  std::fclose(console);
}

BENCHMARK(ExecutorChain)
    ->ArgNames({"lanes", "capture"})
    ->ArgsProduct({{1, 2}, {0, 1}})
    ->UseRealTime();
#define SG_PRESET_BENCHMARK(function, preset)  \
  BENCHMARK_CAPTURE(function, preset, #preset) \
      ->ArgName("lanes")                       \
      ->Arg(1)                                 \
      ->Arg(2)                                 \
      ->UseRealTime()
SG_PRESET_BENCHMARK(ExecutorPhase, quickstart);
SG_PRESET_BENCHMARK(ExecutorPhase, gpt2_124m);
SG_PRESET_BENCHMARK(ExecutorTrain, quickstart);
SG_PRESET_BENCHMARK(ExecutorTrain, gpt2_124m);

}  // namespace
}  // namespace shardgraph
