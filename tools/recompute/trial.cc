#include "tools/recompute/trial.h"

#include <algorithm>

#include "fsdp/train/shard_writer.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {

void MadeUpBatch(const DataSpec& data, int64_t vocab_size, int rank,
                 int64_t step, int64_t micro, Batch* batch) {
  const int64_t count = data.micro_batch_size() * data.sequence_length();
  batch->tokens.resize(count);
  uint64_t state = step * 1000003 + micro * 1009 + rank;
  for (int32_t& token : batch->tokens) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    token = static_cast<int32_t>((state >> 33) % vocab_size);
  }
  batch->targets = batch->tokens;
  batch->documents.assign(count, 0);
  batch->sequence_ids.resize(data.micro_batch_size());
  for (size_t i = 0; i < batch->sequence_ids.size(); ++i)
    batch->sequence_ids[i] = static_cast<int64_t>(step * data.batch_size() + i);
}

Trial::Trial(const TrainConfig& config, const TrainingPlan& plan,
             Runtime& runtime)
    : config_(config), plan_(plan), runtime_(runtime) {
  DataSpec* data = config_.mutable_data();
  data->set_batch_size(std::min(
      data->batch_size(),
      kTrialMicroBatches * runtime.world_size() * data->micro_batch_size()));
  micro_batches_ = MicroBatches(*data, runtime.world_size());
}

Trial::~Trial() = default;

absl::StatusOr<std::unique_ptr<Trial>> Trial::Create(const TrainConfig& config,
                                                     const TrainingPlan& plan,
                                                     Runtime& runtime,
                                                     int64_t recorded_steps) {
  std::unique_ptr<Trial> trial(new Trial(config, plan, runtime));
  SG_RETURN_IF_ERROR(trial->Start(recorded_steps));
  return trial;
}

absl::Status Trial::Start(int64_t recorded_steps) {
  SG_ASSIGN_OR_RETURN(backend_, runtime_.MakeTrialBackend());
  ExecutorOptions options;
  options.backend = backend_.backend.get();
  options.communicators = backend_.communicators.get();
  options.capture = config_.run().capture();
  ReportSteps(plan_, &options);
  if (recorded_steps > 0) {
    recorder_ = std::make_unique<TraceRecorder>(
        plan_.plan.num_lanes,
        TraceCapacity(plan_.plan, micro_batches_, recorded_steps));
    options.trace = recorder_.get();
  }
  SG_ASSIGN_OR_RETURN(executor_, Executor::Create(plan_.plan, options));
  const StepState fresh = FreshState(config_);
  SG_RETURN_IF_ERROR(
      executor_->WriteBuffer(plan_.state, 0, &fresh, sizeof(fresh)));
  SG_RETURN_IF_ERROR(InitializeParameters(plan_, config_.run().seed(),
                                          runtime_.rank() % plan_.groups.shard,
                                          *executor_));
  TrainerOptions trainer;
  trainer.config = &config_;
  trainer.plan = &plan_;
  trainer.executor = executor_.get();
  trainer.rank = runtime_.rank();
  trainer.world_size = runtime_.world_size();
  trainer.training = [this](int64_t step, int64_t micro, Batch* batch) {
    MadeUpBatch(config_.data(), plan_.model->vocab_size(), runtime_.rank(),
                step, micro, batch);
    return absl::OkStatus();
  };
  trainer_ = std::make_unique<Trainer>(trainer);
  return absl::OkStatus();
}

absl::Status Trial::WarmUp() {
  for (int i = 0; i < 3; ++i)
    SG_RETURN_IF_ERROR(trainer_->Step(step_++).status());
  return absl::OkStatus();
}

absl::StatusOr<double> Trial::Step() {
  SG_RETURN_IF_ERROR(runtime_.Barrier());
  if (recorder_ != nullptr) recorder_->Start(static_cast<int32_t>(step_));
  SG_ASSIGN_OR_RETURN(const StepMetrics metrics, trainer_->Step(step_++));
  if (recorder_ != nullptr) recorder_->Stop();
  SG_ASSIGN_OR_RETURN(
      const int64_t slowest,
      runtime_.Max(static_cast<int64_t>(1e9 * metrics.step_seconds)));
  return 1e-9 * static_cast<double>(slowest);
}

}  // namespace shardgraph
