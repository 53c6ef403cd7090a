#include "tests/harness/training_run.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "fsdp/train/shard_writer.h"
#include "fsdp/train/trainer.h"
#include "graph/workspace.h"
#include "kernels/check.h"
#include "kernels/collective/loopback.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/kernels.h"
#include "kernels/random/random.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

// Copies every rank's shards into whole parameters; replicas must be equal.
class Whole {
 public:
  explicit Whole(const Model& model) {
    for (const Parameter* parameter : model.parameters()) {
      values_[parameter->name].resize(parameter->numel());
      known_[parameter->name].resize(parameter->numel());
    }
  }

  // Internal where another rank has added other bits.
  absl::Status Add(const HeldRange& range, const std::vector<float>& values) {
    const std::string& name = range.parameter->name;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = values_.at(name).begin() + range.begin;
    const auto known = known_.at(name).begin() + range.begin;
    for (int64_t i = 0; i < range.elements; ++i) {
      if (known[i] && std::memcmp(&at[i], &values[i], sizeof(float)) != 0) {
        return absl::InternalError(
            absl::StrCat("replicas differ in element ", range.begin + i, " of ",
                         name, ": ", at[i], " and ", values[i]));
      }
      at[i] = values[i];
      known[i] = true;
    }
    return absl::OkStatus();
  }
  std::map<std::string, std::vector<float>> Take() {
    return std::move(values_);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::vector<float>> values_;
  std::map<std::string, std::vector<bool>> known_;
};

class Rank {
 public:
  Rank(const TrainConfig& config, const TrainingRunOptions& options,
       const TrainingPlan& plan, int rank)
      : config_(config),
        options_(options),
        plan_(plan),
        rank_(rank),
        fresh_(FreshState(config)) {}

  // `result`: null, or where losses and norms go.
  absl::Status Run(CommunicatorFactory* factory, Whole* initial, Whole* weights,
                   Whole* gradients, TrainingRunResult* result) {
    SG_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                        MakeBackend(*factory));
    ExecutorOptions executor_options;
    executor_options.backend = backend.get();
    executor_options.communicators = factory;
    executor_options.capture = config_.run().capture();
    if (options_.agree != nullptr) {
      executor_options.agree = [this](bool mine) {
        return options_.agree(rank_, mine);
      };
    }
    if (options_.after_node != nullptr) {
      executor_options.after_node = [this](NodeId node) {
        options_.after_node(plan_.plan.graph, node);
        return absl::OkStatus();
      };
    }
    ReportSteps(plan_, &executor_options);
    SG_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                        Executor::Create(plan_.plan, executor_options));

    const int shard = rank_ % plan_.groups.shard;
    ShardWriter writer(plan_, shard, *executor);
    SG_RETURN_IF_ERROR(
        executor->WriteBuffer(plan_.state, 0, &fresh_, sizeof(fresh_)));
    if (options_.initial != nullptr) {
      SG_RETURN_IF_ERROR(writer.Fill(
          ShardKind::kMaster, [&](const Parameter& parameter, int64_t begin,
                                  absl::Span<float> values) {
            const std::vector<float> whole = options_.initial(parameter);
            std::copy_n(whole.begin() + begin, values.size(), values.begin());
            return absl::OkStatus();
          }));
    } else {
      SG_RETURN_IF_ERROR(
          InitializeParameters(plan_, config_.run().seed(), shard, *executor));
    }
    SG_RETURN_IF_ERROR(Collect(writer, initial));

    TrainerOptions trainer_options;
    trainer_options.config = &config_;
    trainer_options.plan = &plan_;
    trainer_options.executor = executor.get();
    trainer_options.rank = rank_;
    trainer_options.world_size = options_.world_size;
    trainer_options.training = [this](int64_t step, int64_t micro,
                                      Batch* batch) {
      FillBatch(step, micro, batch);
      return absl::OkStatus();
    };
    Trainer trainer(trainer_options);
    for (int64_t step = 0; step < config_.run().steps(); ++step) {
      SG_ASSIGN_OR_RETURN(const StepMetrics metrics, trainer.Step(step));
      if (result != nullptr) {
        result->losses.push_back(metrics.loss);
        result->gradient_norms.push_back(metrics.gradient_norm);
      }
      if (options_.after_step != nullptr)
        options_.after_step(rank_, step, *executor, plan_);
    }
    SG_RETURN_IF_ERROR(Collect(writer, weights));
    return CollectGradients(writer, *executor, gradients);
  }

  // What its backend has allocated.
  int64_t device_bytes() const { return device_bytes_; }

 private:
  absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(
      CommunicatorFactory& factory) {
    auto allocate = [this, &factory](int64_t bytes) {
      device_bytes_ += bytes;
      return factory.AllocateWindow(bytes);
    };
    if (options_.backend != nullptr) return options_.backend(factory, allocate);
    CpuBackendOptions cpu;
    cpu.kernels =
        options_.kernels != nullptr ? options_.kernels : &CpuKernels();
    cpu.threads = options_.threads;
    cpu.allocate = allocate;
    return MakeCpuBackend(std::move(cpu));
  }

  absl::Status Collect(ShardWriter& writer, Whole* whole) {
    for (const HeldRange& range : writer.Held()) {
      std::vector<float> values(range.elements);
      SG_RETURN_IF_ERROR(
          writer.Read(range, 0, absl::MakeSpan(values), ShardKind::kMaster));
      SG_RETURN_IF_ERROR(whole->Add(range, values));
    }
    return absl::OkStatus();
  }

  // Shards hold sums seeded with 1 / nominal tokens; the average is over the
  // tokens that count.
  absl::Status CollectGradients(ShardWriter& writer, Executor& executor,
                                Whole* whole) {
    double nominal = 0, tokens = 0;
    SG_RETURN_IF_ERROR(executor.ReadBuffer(plan_.state,
                                           offsetof(StepState, nominal_tokens),
                                           &nominal, sizeof(nominal)));
    SG_RETURN_IF_ERROR(executor.ReadBuffer(plan_.state,
                                           offsetof(StepState, token_count),
                                           &tokens, sizeof(tokens)));
    for (const HeldRange& range : writer.Held()) {
      if (plan_.units[range.unit].gradient == kNone) continue;  // frozen
      std::vector<float> values(range.elements);
      SG_RETURN_IF_ERROR(executor.ReadBuffer(
          plan_.units[range.unit].gradient, range.shard_begin * sizeof(float),
          values.data(), values.size() * sizeof(float)));
      for (float& value : values)
        value = static_cast<float>(value * (nominal / tokens));
      SG_RETURN_IF_ERROR(whole->Add(range, values));
    }
    return absl::OkStatus();
  }

  void FillBatch(int64_t step, int64_t micro, Batch* batch) {
    const DataSpec& data = config_.data();
    const int64_t length = data.sequence_length(),
                  rows = data.micro_batch_size();
    batch->tokens.assign(rows * length, 0);
    batch->targets.assign(rows * length, kIgnoredTarget);
    batch->sequence_ids.assign(rows, 0);
    for (int64_t b = 0; b < rows; ++b) {
      const int64_t in_batch = (micro * options_.world_size + rank_) * rows + b;
      const int64_t sequence = step * data.batch_size() + in_batch;
      batch->sequence_ids[b] = sequence;
      if (in_batch >= data.batch_size()) continue;
      const auto tokens = absl::MakeSpan(&batch->tokens[b * length], length);
      const auto targets = absl::MakeSpan(&batch->targets[b * length], length);
      if (options_.sequences != nullptr) {
        options_.sequences(sequence, tokens, targets);
        continue;
      }
      // Counting in steps of 1 to 3 from anywhere: soon learned.
      const RandomKey key = MakeRandomKey(config_.run().seed(),
                                          HashName("test tokens"), sequence);
      const int64_t first = RandomWord(key, 0),
                    stride = 1 + RandomWord(key, 1) % 3;
      const auto token = [&](int64_t t) {
        return static_cast<int32_t>((first + t * stride) %
                                    plan_.model->vocab_size());
      };
      for (int64_t t = 0; t < length; ++t) {
        tokens[t] = token(t);
        targets[t] =
            sequence % 3 == 0 && t % 4 == 1 ? kIgnoredTarget : token(t + 1);
      }
    }
  }

  const TrainConfig& config_;
  const TrainingRunOptions& options_;
  const TrainingPlan& plan_;
  const int rank_;
  const StepState fresh_;
  int64_t device_bytes_ = 0;
};

// Resolves the config and plans it.
absl::StatusOr<std::unique_ptr<TrainingPlan>> MakePlan(
    const TrainingRunOptions& options, TrainConfig* config) {
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      MakeModel(config->model()));
  ResolveTrainConfig(model->max_positions(), options.world_size, config);
  SG_RETURN_IF_ERROR(
      ValidateTrainConfig(*config, model->max_positions(), options.world_size));

  PlanRequest request;
  request.config = config;
  request.world_size = options.world_size;
  request.target = options.target;
  if (request.target.lanes() == 0) {
    request.target.set_name("test");
    request.target.set_lanes(2);
    request.target.set_buffer_alignment(256);
    request.target.set_window_alignment(4096);
  }
  request.workspace = KernelWorkspace(
      options.kernels != nullptr ? *options.kernels : CpuKernels(),
      request.target);
  return MakeTrainingPlan(request);
}

}  // namespace

absl::StatusOr<TrainingRunResult> RunTraining(
    TrainConfig config, const TrainingRunOptions& options) {
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingPlan> plan,
                      MakePlan(options, &config));
  std::vector<std::unique_ptr<CommunicatorFactory>> factories =
      options.world != nullptr ? options.world(options.world_size)
                               : MakeLoopbackWorld(options.world_size);
  TrainingRunResult result;
  // Before the steps, whose allocations are counted.
  result.losses.reserve(config.run().steps());
  result.gradient_norms.reserve(config.run().steps());
  result.device_bytes.resize(options.world_size);
  Whole initial(*plan->model), weights(*plan->model), gradients(*plan->model);
  std::vector<absl::Status> statuses(options.world_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      // A rank that fails gives up its factory, which tells the others.
      const std::unique_ptr<CommunicatorFactory> factory =
          std::move(factories[rank]);
      Rank run(config, options, *plan, rank);
      statuses[rank] = run.Run(factory.get(), &initial, &weights, &gradients,
                               rank == 0 ? &result : nullptr);
      result.device_bytes[rank] = run.device_bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) SG_RETURN_IF_ERROR(status);
  result.initial = initial.Take();
  result.weights = weights.Take();
  result.gradients = gradients.Take();
  return result;
}

absl::StatusOr<TrainingRunResult> RunTrainingRank(
    TrainConfig config, TrainingRunOptions options,
    CommunicatorFactory& factory) {
  options.world_size = factory.size();
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingPlan> plan,
                      MakePlan(options, &config));
  TrainingRunResult result;
  Whole initial(*plan->model), weights(*plan->model), gradients(*plan->model);
  Rank run(config, options, *plan, factory.rank());
  SG_RETURN_IF_ERROR(
      run.Run(&factory, &initial, &weights, &gradients, &result));
  result.device_bytes = {run.device_bytes()};
  result.initial = initial.Take();
  result.weights = weights.Take();
  result.gradients = gradients.Take();
  return result;
}

double RelativeDifference(const std::vector<float>& a,
                          const std::vector<float>& b) {
  SG_CHECK(a.size() == b.size())
      << a.size() << " and " << b.size() << " elements";
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace shardgraph
