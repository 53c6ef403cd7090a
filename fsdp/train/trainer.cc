#include "fsdp/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/train/finite_check.h"
#include "fsdp/train/learning_rate.h"
#include "fsdp/train/shard_writer.h"
#include "graph/model_flops.h"
#include "graph/step_plan.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

using Clock = std::chrono::steady_clock;

ValueId Find(const std::map<std::string, ValueId>& values, const char* name) {
  const auto it = values.find(name);
  return it == values.end() ? kNone : it->second;
}

absl::Status AtStep(const absl::Status& status, int64_t step) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("step ", step + 1, ": ", status.message()));
}

}  // namespace

void ReportSteps(const TrainingPlan& plan, ExecutorOptions* options) {
  options->report_after = plan.plan.graph.FindPhase("update");
  options->report = plan.state;
}

Trainer::Trainer(const TrainerOptions& options) : options_(options) {
  const Graph& graph = options.plan->plan.graph;
  const DataSpec& data = options.config->data();
  shape_ = {data.batch_size(), data.micro_batch_size(), options.world_size,
            options.rank};
  micro_batches_ = MicroBatches(data, options.world_size);
  micro_ = graph.FindPhase("micro");
  last_micro_ = graph.FindPhase(kLastMicroPhase);
  if (last_micro_ == kNone) last_micro_ = micro_;
  update_ = graph.FindPhase("update");
  eval_ = graph.FindPhase("eval");
  eval_reduce_ = graph.FindPhase("eval_reduce");
  tokens_ = Find(graph.inputs, "tokens");
  targets_ = Find(graph.inputs, "targets");
  sequence_ids_ = Find(graph.inputs, "sequence_ids");
  documents_ = Find(graph.inputs, "documents");
  loss_pair_ = Find(graph.outputs, "loss_pair");
  if (micro_ != kNone) {
    model_flops_ =
        ModelFlopsOf(graph, micro_) * micro_batches_ * options.world_size;
  }
}

template <typename T>
absl::Status Trainer::WriteState(int64_t offset, const T& value) {
  return options_.executor->Stage(options_.plan->state, offset, &value,
                                  sizeof(value));
}

absl::Status Trainer::Begin() {
  if (begun_) return absl::OkStatus();
  SG_RETURN_IF_ERROR(GatherParameters(*options_.plan, *options_.executor));
  begun_ = true;
  return absl::OkStatus();
}

absl::Status Trainer::WriteBatch(const Batch& batch) {
  Executor& executor = *options_.executor;
  SG_RETURN_IF_ERROR(executor.StageValue(
      tokens_, batch.tokens.data(), batch.tokens.size() * sizeof(int32_t)));
  SG_RETURN_IF_ERROR(executor.StageValue(
      targets_, batch.targets.data(), batch.targets.size() * sizeof(int32_t)));
  if (documents_ != kNone) {
    SG_RETURN_IF_ERROR(
        executor.StageValue(documents_, batch.documents.data(),
                            batch.documents.size() * sizeof(int32_t)));
  }
  if (sequence_ids_ == kNone) return absl::OkStatus();
  return executor.StageValue(sequence_ids_, batch.sequence_ids.data(),
                             batch.sequence_ids.size() * sizeof(int64_t));
}

double Trainer::RateOf(int64_t step) const {
  const OptimizerSpec& optimizer = options_.config->optimizer();
  return LearningRate(options_.config->schedule(), optimizer.learning_rate(),
                      step) *
         WorldFactor(optimizer.learning_rate_scaling(), shape_.world_size);
}

absl::Status Trainer::StageStart(int64_t step, const Batch& batch) {
  const double rate = RateOf(step);
  float rates[StepState::kMaxGroups];
  std::fill(std::begin(rates), std::end(rates), 0.0f);
  const auto& groups = options_.plan->parameter_groups.groups();
  for (size_t g = 0; g < groups.size(); ++g)
    rates[g] = static_cast<float>(rate * groups[g].learning_rate_factor);
  SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, run_step), step));
  SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, position), int64_t{0}));
  SG_RETURN_IF_ERROR(WriteState(
      offsetof(StepState, nominal_tokens),
      static_cast<double>(shape_.batch_size *
                          options_.config->data().sequence_length())));
  SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, learning_rate), rates));
  SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, micro), int64_t{0}));
  return WriteBatch(batch);
}

void Trainer::StageAhead(int64_t step) {
  const PhaseId first = micro_batches_ == 1 ? last_micro_ : micro_;
  const absl::Status status = options_.executor->Ahead(first, [&] {
    ahead_step_ = -1;
    SG_RETURN_IF_ERROR(options_.training(step, 0, &ahead_));
    ahead_step_ = step;
    return StageStart(step, ahead_);
  });
  // What is wrong with that step is that step's to say.
  if (!status.ok()) ahead_step_ = -1;
}

absl::StatusOr<StepMetrics> Trainer::Step(int64_t step) {
  SG_RETURN_IF_ERROR(Begin());
  const Clock::time_point begin = Clock::now();
  Executor& executor = *options_.executor;
  if (std::exchange(ahead_step_, -1) == step) {
    std::swap(batch_, ahead_);
  } else {
    SG_RETURN_IF_ERROR(options_.training(step, 0, &batch_));
  }
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    if (micro == 0) {
      SG_RETURN_IF_ERROR(StageStart(step, batch_));
    } else {
      SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, micro), micro));
      SG_RETURN_IF_ERROR(WriteBatch(batch_));
    }
    const bool last = micro + 1 == micro_batches_;
    SG_RETURN_IF_ERROR(executor.Enqueue(last ? last_micro_ : micro_));
    if (!last) {  // while the lanes work
      SG_RETURN_IF_ERROR(options_.training(step, micro + 1, &next_));
      std::swap(batch_, next_);
    }
  }
  SG_RETURN_IF_ERROR(executor.Enqueue(update_));
  if (step + 1 < options_.config->run().steps()) StageAhead(step + 1);

  StepState state;
  SG_RETURN_IF_ERROR(
      executor.ReadReport(executor.reports() - 1, &state, sizeof(state)));
  StepMetrics metrics;
  metrics.step = step + 1;
  metrics.loss = state.token_count > 0 ? state.loss_sum / state.token_count : 0;
  metrics.learning_rate = RateOf(step);
  metrics.gradient_norm = state.gradient_norm;
  metrics.tokens = static_cast<int64_t>(state.token_count);
  metrics.step_seconds =
      std::chrono::duration<double>(Clock::now() - begin).count();
  metrics.tokens_per_second = metrics.tokens / metrics.step_seconds;
  if (options_.peak_flops > 0)
    metrics.mfu = model_flops_ / metrics.step_seconds / options_.peak_flops;
  metrics.loss_scale = state.loss_scale;
  metrics.skipped = state.found_inf != 0;
  SG_RETURN_IF_ERROR(CheckFinite(metrics));
  return metrics;
}

absl::Status Trainer::CheckFinite(const StepMetrics& metrics) {
  const TrainConfig& config = *options_.config;
  switch (config.run().non_finite()) {
    case RunSpec::IGNORE:
      return absl::OkStatus();
    case RunSpec::SKIP:
      if (!metrics.skipped || config.precision().compute() != FP16 ||
          metrics.loss_scale >= 1) {
        return absl::OkStatus();
      }
      return absl::DataLossError(absl::StrCat(
          "gradients overflow even with a loss scale of ", metrics.loss_scale,
          "; lower optimizer.learning_rate, lengthen schedule.warmup_steps, or "
          "set precision.compute=BF16"));
    default:
      break;
  }
  if (!metrics.skipped && std::isfinite(metrics.loss)) return absl::OkStatus();
  SG_ASSIGN_OR_RETURN(const std::string first, FindNotFinite(metrics.step - 1));
  return absl::DataLossError(absl::StrCat(
      "the loss is ", metrics.loss, " and the gradient norm ",
      metrics.gradient_norm, ": not finite, first of all ", first,
      "; the weights were left as they were before this step. Lower "
      "optimizer.learning_rate, lengthen schedule.warmup_steps, look at the "
      "data of this step, or set run.non_finite=SKIP"));
}

absl::StatusOr<std::string> Trainer::FindNotFinite(int64_t step) {
  const int shard = options_.rank % options_.plan->groups.shard;
  SG_ASSIGN_OR_RETURN(
      std::string found,
      ParameterNotFinite(*options_.plan, shard, *options_.executor));
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    SG_RETURN_IF_ERROR(options_.training(step, micro, &batch_));
    SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, micro), micro));
    SG_RETURN_IF_ERROR(WriteBatch(batch_));
    const bool last = micro + 1 == micro_batches_;
    SG_ASSIGN_OR_RETURN(
        const std::string module,
        ModuleNotFinite(*options_.plan, last ? last_micro_ : micro_,
                        *options_.executor));
    if (!found.empty() || module.empty()) continue;
    found = absl::StrCat(module, " in micro-batch ", micro + 1, " of ",
                         micro_batches_);
  }
  return found.empty() ? std::string("what another rank computes") : found;
}

absl::StatusOr<EvaluationMetrics> Trainer::Evaluate(int64_t step,
                                                    int64_t sequences) {
  SG_CHECK(options_.validation != nullptr && eval_ != kNone)
      << "there is nothing to evaluate";
  SG_RETURN_IF_ERROR(Begin());
  const int64_t run = shape_.world_size * shape_.micro_batch_size;
  SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, position), int64_t{0}));
  for (int64_t micro = 0; micro * run < sequences; ++micro) {
    SG_RETURN_IF_ERROR(options_.validation(sequences, micro, &batch_));
    SG_RETURN_IF_ERROR(WriteState(offsetof(StepState, micro), micro));
    SG_RETURN_IF_ERROR(WriteBatch(batch_));
    SG_RETURN_IF_ERROR(options_.executor->Run(eval_));
  }
  SG_RETURN_IF_ERROR(options_.executor->Run(eval_reduce_));
  double pair[2] = {};
  SG_RETURN_IF_ERROR(options_.executor->Read(loss_pair_, pair, sizeof(pair)));
  EvaluationMetrics metrics;
  metrics.step = step;
  metrics.loss = pair[1] > 0 ? pair[0] / pair[1] : 0;
  metrics.tokens = static_cast<int64_t>(pair[1]);
  return metrics;
}

template <typename Metrics>
void Trainer::Report(const Metrics& metrics) {
  for (MetricsSink* sink : options_.metrics) {
    const absl::Status written = sink->Write(metrics);
    if (written.ok() || !failed_sinks_.insert(sink).second) continue;
    std::fprintf(stderr,
                 "metrics of step %lld are missing: %s; training goes on, this "
                 "is said once\n",
                 static_cast<long long>(metrics.step),
                 std::string(written.message()).c_str());
    std::fflush(stderr);
  }
}

absl::StatusOr<int64_t> Trainer::Train(int64_t first_step) {
  const TrainConfig& config = *options_.config;
  const int64_t steps = config.run().steps();
  const absl::Duration usual = absl::Seconds(config.run().timeout_seconds());
  const absl::Duration startup =
      absl::Seconds(config.run().startup_timeout_seconds());
  // A save may wait for the one before it.
  const absl::Duration saving =
      absl::Seconds(2 * config.checkpoint().timeout_seconds());
  const auto watch = [this](const char* what, int64_t step,
                            absl::Duration timeout) {
    return Watchdog::Watch(options_.watchdog, what, step,
                           Watchdog::LimitOf(timeout));
  };
  for (int64_t step = first_step; step < steps; ++step) {
    const int64_t done = step + 1;
    if (options_.begin_step != nullptr) options_.begin_step(step);
    const absl::StatusOr<StepMetrics> metrics = [&] {
      const auto watched =
          watch("step", done, step == first_step ? startup : usual);
      return Step(step);
    }();
    if (!metrics.ok()) return AtStep(metrics.status(), step);
    if (options_.end_step != nullptr)
      SG_RETURN_IF_ERROR(AtStep(options_.end_step(step), step));
    if (step == first_step && options_.warmed_up != nullptr)
      options_.warmed_up();
    Report(*metrics);

    const bool last = done == steps;
    bool stop = false;
    if (!last && options_.stop != nullptr) {
      const absl::StatusOr<bool> agreed = options_.stop(metrics->step_seconds);
      if (!agreed.ok()) return AtStep(agreed.status(), step);
      stop = *agreed;
    }
    const int64_t evaluate_every = config.evaluation().every();
    if (options_.validation != nullptr && !stop &&
        (last || (evaluate_every > 0 && done % evaluate_every == 0))) {
      const absl::StatusOr<EvaluationMetrics> evaluation = [&] {
        const auto watched = watch("the evaluation after step", done, usual);
        return Evaluate(done, last ? options_.final_validation_sequences
                                   : options_.validation_sequences);
      }();
      if (!evaluation.ok()) return AtStep(evaluation.status(), step);
      Report(*evaluation);
    }
    const int64_t save_every = config.checkpoint().every();
    if (options_.save != nullptr &&
        (last || stop || (save_every > 0 && done % save_every == 0))) {
      const auto watched = watch("saving after step", done, saving);
      SG_RETURN_IF_ERROR(AtStep(options_.save(done, last || stop), step));
    }
    if (stop) return done;
  }
  return std::max(first_step, steps);
}

}  // namespace shardgraph
