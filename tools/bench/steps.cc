// Whole training steps: how fast, where the time goes, and how that compares
// with what oneDNN's products reach on the same cores at the same time.
//
//   bazel run //tools:bench -- --benchmark_filter=Steps [--device=cpu|cuda]
//
// On a GPU one rank runs larger batches; counters are then tokens_per_second,
// flops_per_second and of_peak, their share of the target's dense peak. On
// CPUs:
//
// Counters, all of them means: tokens_per_second and flops_per_second (model
// FLOPs, graph/model_flops.h) of all ranks; of_onednn: share of what oneDNN
// reaches for a large product (onednn_matmul.h) on all ranks together; of_fma:
// of the FP32 multiply-adds that the cores can do; of_best_matmuls: what the
// products of the step take, over what they take by themselves, ours or, where
// it is faster, oneDNN's with weights packed or not; LANE/FAMILY: shares of the
// step. A table of the same, and of the products, goes to stderr. What a step
// is compared with runs after each step, on all ranks at once, so that both see
// the same machine: cores that others use too may be twice as fast a second
// later.
#include "tools/bench/steps.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmark/benchmark.h"
#include "fsdp/config/train_config.h"
#include "fsdp/data/batches.h"
#include "fsdp/files/json.h"
#include "fsdp/train/shard_writer.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "graph/model_flops.h"
#include "kernels/check.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cpu/target.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tools/bench/onednn_matmul.h"
#include "tools/bench/ranks.h"
#include "tools/plan/timeline.h"
#include "tools/presets/presets.h"
#include "tools/recompute/trial.h"
#include "tools/trace/rank_trace.h"
#include "tools/trace/step_times.h"

namespace shardgraph {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
constexpr int kWarmUp = 3;         // eager, recorded, settled
constexpr int kLargeProducts = 4;  // oneDNN's, after each step

// Work of one kind and the seconds that it took.
struct Work {
  double flops = 0, seconds = 0;

  void Add(double more_flops, double more_seconds) {
    flops += more_flops;
    seconds += more_seconds;
  }
  double rate() const { return flops / seconds; }  // FLOP/s
};

double SecondsSince(int64_t begin) {
  return 1e-9 * static_cast<double>(TraceRecorder::Now() - begin);
}

class StepsRank {
 public:
  explicit StepsRank(Runtime& runtime) : runtime_(runtime) {}

  absl::StatusOr<json> Run(const json& arguments) {
    steps_ = arguments.at("steps");
    name_ = arguments.at("config");
    SG_RETURN_IF_ERROR(Prepare(arguments.at("overrides")));
    SG_RETURN_IF_ERROR(Time());
    if (runtime_.on_gpu()) return GpuReport();
    SG_ASSIGN_OR_RETURN(
        const std::vector<std::string> packed,
        runtime_.Collect(PackTrace(TakeTrace(*recorder_, runtime_.rank()))));
    SG_ASSIGN_OR_RETURN(
        const std::vector<std::string> flops,
        runtime_.Collect(JsonText({onednn_.rate(), fma_.rate()})));
    if (runtime_.rank() != 0) return json();
    for (const std::string& bytes : packed) {
      SG_ASSIGN_OR_RETURN(ranks_.emplace_back(), UnpackTrace(bytes));
    }
    double onednn = 0, fma = 0;
    for (const std::string& text : flops) {
      const json both = ParseJson(text);
      onednn += both.at(0).get<double>();
      fma += both.at(1).get<double>() * runtime_.threads();
    }
    return Report(onednn, fma);
  }

 private:
  const StepPlan& plan() const { return plan_->plan; }
  int64_t MicroBatchesOfStep() const {
    return MicroBatches(config_.data(), runtime_.world_size());
  }

  absl::Status Prepare(const std::vector<std::string>& overrides) {
    SG_ASSIGN_OR_RETURN(config_, LoadConfig(name_, overrides));
    SG_ASSIGN_OR_RETURN(const auto model, MakeModel(config_.model()));
    ResolveTrainConfig(model->max_positions(), runtime_.world_size(), &config_);
    SG_RETURN_IF_ERROR(ValidateTrainConfig(config_, model->max_positions(),
                                           runtime_.world_size()));
    PlanRequest request;
    request.config = &config_;
    request.world_size = runtime_.world_size();
    SG_ASSIGN_OR_RETURN(
        const DeviceChoice device,
        ChooseDevice(runtime_.on_gpu() ? "cuda" : "cpu", /*local_ranks=*/1));
    SG_ASSIGN_OR_RETURN(target_, LoadTargetPreset(device.target));
    request.target = target_;
    request.workspace = runtime_.Workspace(target_);
    request.evaluate = false;
    SG_ASSIGN_OR_RETURN(plan_, MakeTrainingPlan(request));
    recorder_ = std::make_unique<TraceRecorder>(
        plan().num_lanes, TraceCapacity(plan(), MicroBatchesOfStep(), steps_));
    ExecutorOptions options = runtime_.ForExecutor();
    options.capture = config_.run().capture();
    ReportSteps(*plan_, &options);
    // On a GPU it would see the host enqueue.
    if (!runtime_.on_gpu()) options.trace = recorder_.get();
    SG_ASSIGN_OR_RETURN(executor_, Executor::Create(plan(), options));
    const StepState fresh;
    SG_RETURN_IF_ERROR(
        executor_->WriteBuffer(plan_->state, 0, &fresh, sizeof(fresh)));
    SG_RETURN_IF_ERROR(InitializeParameters(
        *plan_, config_.run().seed(), runtime_.rank() % plan_->groups.shard,
        *executor_));
    return absl::OkStatus();
  }

  absl::Status Time() {
    TrainerOptions options;
    options.config = &config_;
    options.plan = plan_.get();
    options.executor = executor_.get();
    options.training = [this](int64_t step, int64_t micro, Batch* batch) {
      MadeUpBatch(config_.data(), plan_->model->vocab_size(), runtime_.rank(),
                  step, micro, batch);
      return absl::OkStatus();
    };
    options.rank = runtime_.rank();
    options.world_size = runtime_.world_size();
    Trainer trainer(options);
    for (int64_t step = 0; step < kWarmUp + steps_; ++step) {
      const bool timed = step >= kWarmUp;
      SG_RETURN_IF_ERROR(runtime_.Barrier());
      if (timed) recorder_->Start(static_cast<int32_t>(step));
      SG_ASSIGN_OR_RETURN(const StepMetrics metrics, trainer.Step(step));
      if (!timed) continue;
      recorder_->Stop();
      seconds_.push_back(metrics.step_seconds);
      tokens_ = metrics.tokens;
      SG_RETURN_IF_ERROR(runtime_.Barrier());
      if (runtime_.on_gpu()) continue;
      SG_RETURN_IF_ERROR(TimeProducts());
      SG_RETURN_IF_ERROR(TimeOnednn());
      TimeMultiplyAdds();
    }
    return absl::OkStatus();
  }

  // The product that a node is, if it is one.
  std::optional<MatmulShape> ProductOf(const Node& node) const {
    if (FamilyOf(node.op->name) != "matmul") return std::nullopt;
    const Graph& graph = plan().graph;
    const auto operands = graph.OperandTypes(node),
               results = graph.ResultTypes(node);
    const double flops =
        CostOf(*node.op, node.attributes, operands, results).matmul_flops;
    if (flops == 0) return std::nullopt;
    MatmulShape shape;
    shape.m = results[0].shape[0];
    shape.n = results[0].shape[1];
    shape.k = static_cast<int64_t>(flops / (2.0 * shape.m * shape.n));
    shape.transpose_a = node.attributes.Int("transpose_a") != 0;
    shape.transpose_b = node.attributes.Int("transpose_b") != 0;
    shape.in = operands[0].dtype;
    shape.out = results[0].dtype;
    return shape;
  }

  // Times the products by themselves: the nodes of a micro-batch one after
  // another, nothing beside them but the other ranks at the same.
  absl::Status TimeProducts() {
    const Graph& graph = plan().graph;
    StepState state;
    SG_RETURN_IF_ERROR(
        executor_->ReadBuffer(plan_->state, 0, &state, sizeof(state)));
    int64_t begin = TraceRecorder::Now();
    SG_RETURN_IF_ERROR(
        executor_->RunNodes(graph.FindPhase("micro"), [&](NodeId id) {
          if (const auto shape = ProductOf(graph.nodes[id])) {
            products_[*shape].ours.Add(shape->flops(), SecondsSince(begin));
          }
          begin = TraceRecorder::Now();
        }));
    return executor_->WriteBuffer(plan_->state, 0, &state, sizeof(state));
  }

  // The products of a step, and large ones.
  absl::Status TimeOnednn() {
    for (auto& [shape, product] : products_) {
      if (product.onednn.empty()) {
        for (const bool packed : {false, true}) {
          auto matmul = OnednnMatmul::Create(shape, packed);
          if (matmul.ok())
            product.onednn.push_back({*std::move(matmul), Work()});
        }
      }
      for (auto& [matmul, work] : product.onednn) {
        SG_RETURN_IF_ERROR(runtime_.Barrier());
        work.Add(shape.flops(), matmul->Run());
      }
    }
    const MatmulShape large = LargeMatmulShape();
    if (large_ == nullptr) {
      SG_ASSIGN_OR_RETURN(large_, OnednnMatmul::Create(large, false));
    }
    SG_RETURN_IF_ERROR(runtime_.Barrier());
    for (int i = 0; i < kLargeProducts; ++i)
      onednn_.Add(large.flops(), large_->Run());
    return absl::OkStatus();
  }

  // In registers, on this thread.
  void TimeMultiplyAdds() {
    constexpr int64_t kRounds = 2000000;
    const int64_t begin = TraceRecorder::Now();
    benchmark::DoNotOptimize(SG_BEST_CPU_TARGET(MultiplyAdd)(kRounds));
    fma_.Add(1.0 * kRounds * SG_BEST_CPU_TARGET(FlopsPerStep)(),
             SecondsSince(begin));
  }

  struct Product {
    double seconds = 0, runs = 0;  // within a step
    Work ours;                     // by itself
    std::vector<std::pair<std::unique_ptr<OnednnMatmul>, Work>> onednn;

    // Of oneDNN's, 0 if it has none.
    double onednn_rate() const {
      double rate = 0;
      for (const auto& [matmul, work] : onednn)
        rate = std::max(rate, work.rate());
      return rate;
    }
    double best_rate() const { return std::max(ours.rate(), onednn_rate()); }
  };

  // After the recorded steps.
  void AddSteps() {
    const std::vector<NodeTimes> times = NodeTimesOf(plan(), ranks_);
    for (size_t id = 0; id < times.size(); ++id) {
      const auto shape = ProductOf(plan().graph.nodes[id]);
      if (!shape || times[id].runs == 0) continue;
      products_[*shape].seconds += times[id].seconds;
      products_[*shape].runs += times[id].runs;
    }
  }

  static void AppendProduct(const MatmulShape& shape, const Product& product,
                            std::string* table) {
    absl::StrAppendFormat(
        table,
        "  %5d x %5d x %5d %s%s -> %-4s %3.0f a step %9.2f ms, %7.1f GFLOP/s, "
        "by itself %7.1f",
        shape.m, shape.n, shape.k, shape.transpose_a ? "t" : "n",
        shape.transpose_b ? "t" : "n", DTypeName(shape.out), product.runs,
        1e3 * product.seconds,
        1e-9 * shape.flops() * product.runs / product.seconds,
        1e-9 * product.ours.rate());
    if (!product.onednn.empty()) {
      absl::StrAppendFormat(table, ", oneDNN's %7.1f",
                            1e-9 * product.onednn_rate());
    }
    table->push_back('\n');
  }

  double MeanSeconds() const {
    return std::accumulate(seconds_.begin(), seconds_.end(), 0.0) /
           static_cast<double>(seconds_.size());
  }
  double Fastest() const {
    return *std::min_element(seconds_.begin(), seconds_.end());
  }
  // Of the model, in a step of all ranks.
  double Flops() const {
    return ModelFlopsOf(plan().graph, plan().graph.FindPhase("micro")) *
           MicroBatchesOfStep() * runtime_.world_size();
  }

  json GpuReport() const {
    const double rate = Flops() / Fastest();
    const double peak = runtime_.world_size() * (plan_->compute == DType::kF32
                                                     ? target_.fp32_flops()
                                                     : target_.bf16_flops());
    return {{"seconds", seconds_},
            {"figures",
             {{"tokens_per_second", tokens_ / Fastest()},
              {"flops_per_second", rate},
              {"of_peak", rate / peak}}},
            {"table", absl::StrFormat(
                          "%s on %s: %.2f ms a step at best, %.0f tokens/s, "
                          "%.1f TFLOP/s of the model, %.1f %% of %s's peak\n",
                          name_, runtime_.DeviceInWords(), 1e3 * Fastest(),
                          tokens_ / Fastest(), 1e-12 * rate, 100 * rate / peak,
                          target_.name())}};
  }

  // `onednn` and `fma`: FLOP/s of all ranks.
  json Report(double onednn, double fma) {
    const StepTimes times = StepTimesOf(plan(), ranks_);
    const double rate = Flops() / MeanSeconds();
    AddSteps();
    double matmuls = 0, best_matmuls = 0;
    for (const auto& [shape, product] : products_) {
      matmuls += product.seconds;
      best_matmuls += product.runs * shape.flops() / product.best_rate();
    }
    std::map<std::string, double> figures = {
        {"tokens_per_second", tokens_ / MeanSeconds()},
        {"flops_per_second", rate},
        {"onednn_flops_per_second", onednn},
        {"of_onednn", rate / onednn},
        {"of_fma", rate / fma},
        {"of_best_matmuls", matmuls / best_matmuls}};
    std::string table = absl::StrFormat(
        "%s, %d ranks x %d thread: %.1f ms a step, %.1f at best, %.0f "
        "tokens/s; %.1f GFLOP/s of the model, %.1f of oneDNN\n",
        name_, runtime_.world_size(), runtime_.threads(), 1e3 * MeanSeconds(),
        1e3 * Fastest(), tokens_ / MeanSeconds(), 1e-9 * rate, 1e-9 * onednn);
    for (size_t lane = 0; lane < times.lanes.size(); ++lane) {
      const std::string name =
          LaneName(static_cast<int>(lane), plan().num_lanes);
      std::map<std::string, double> parts = times.lanes[lane].families;
      parts["peers"] = times.lanes[lane].peers;
      parts["waits"] = times.lanes[lane].waits;
      parts["queued"] = times.lanes[lane].queued;
      parts["engine"] = times.lanes[lane].engine;
      std::vector<std::pair<double, std::string>> sorted;
      for (const auto& [part, seconds] : parts) {
        figures[absl::StrCat(name, "/", part)] = seconds / times.seconds;
        sorted.emplace_back(seconds, part);
      }
      std::sort(sorted.rbegin(), sorted.rend());
      for (const auto& [seconds, part] : sorted) {
        absl::StrAppendFormat(&table, "  %-14s %-11s %9.2f ms %6.2f %%\n", name,
                              part, 1e3 * seconds,
                              100 * seconds / times.seconds);
      }
    }
    for (const auto& [shape, product] : products_)
      AppendProduct(shape, product, &table);
    return {{"seconds", seconds_}, {"figures", figures}, {"table", table}};
  }

  Runtime& runtime_;
  std::string name_;
  int64_t steps_ = 0;
  TrainConfig config_;
  TargetSpec target_;
  std::unique_ptr<TrainingPlan> plan_;
  std::unique_ptr<TraceRecorder> recorder_;
  std::unique_ptr<Executor> executor_;
  std::vector<double> seconds_;
  int64_t tokens_ = 0;
  std::unique_ptr<OnednnMatmul> large_;
  Work onednn_, fma_;                        // of this rank, of one thread
  std::map<MatmulShape, Product> products_;  // of this rank
  std::vector<RankTrace> ranks_;
};

}  // namespace

absl::StatusOr<json> StepsTask(const json& arguments, Runtime& runtime) {
  return StepsRank(runtime).Run(arguments);
}

namespace {

void Steps(benchmark::State& state, const std::string& device,
           const std::string& config,
           const std::vector<std::string>& overrides) {
  const auto result = RunOnRanks("steps",
                                 {{"config", config},
                                  {"overrides", overrides},
                                  {"steps", state.max_iterations}},
                                 device == "cuda" ? 1 : kRanks, device);
  if (!result.ok()) {
    state.SkipWithError(std::string(result.status().message()).c_str());
    return;
  }
  size_t step = 0;
  for (auto _ : state) state.SetIterationTime(result->at("seconds").at(step++));
  for (const auto& [name, value] : result->at("figures").items())
    state.counters[name] = value.get<double>();
  std::fputs(result->at("table").get<std::string>().c_str(), stderr);
}

struct StepsCase {
  const char* name;
  const char* config;
  int steps;
  std::vector<std::string> overrides;
};

}  // namespace

void RegisterSteps(const std::string& device) {
  const std::vector<std::string> large = {"data.batch_size=16",
                                          "data.micro_batch_size=16"};
  std::vector<std::string> eager = large;
  eager.push_back("run.capture=false");
  const std::vector<StepsCase> cases =
      device == "cuda"
          ? std::vector<StepsCase>{{"gpt2_124m", "gpt2_124m", 20, large},
                                   {"gpt2_124m_eager", "gpt2_124m", 20, eager},
                                   {"gpt2_1558m",
                                    "gpt2_1558m",
                                    10,
                                    {"data.batch_size=8",
                                     "data.micro_batch_size=8"}},
                                   {"quickstart", "quickstart", 50, {}}}
          // One sequence of 1,024 tokens a rank.
          : std::vector<StepsCase>{
                {"gpt2_124m", "gpt2_124m", 8, {"data.batch_size=2"}},
                {"quickstart", "quickstart", 10, {}}};
  for (const StepsCase& c : cases) {
    benchmark::RegisterBenchmark(absl::StrCat("Steps/", c.name).c_str(),
                                 [device, c](benchmark::State& state) {
                                   Steps(state, device, c.config, c.overrides);
                                 })
        ->Iterations(c.steps)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace shardgraph
