#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/checkpoint_folder.h"
#include "fsdp/checkpoint/checkpoint_saver.h"
#include "fsdp/checkpoint/huggingface.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/config/text_config.h"
#include "fsdp/data/batches.h"
#include "fsdp/data/prefetch.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/launch/error_file.h"
#include "fsdp/launch/stop_signal.h"
#include "fsdp/train/metrics_jsonl.h"
#include "fsdp/train/progress.h"
#include "fsdp/train/shard_writer.h"
#include "fsdp/train/stop_agreement.h"
#include "fsdp/train/tensorboard.h"
#include "fsdp/train/trainer.h"
#include "fsdp/train/training_plan.h"
#include "fsdp/train/watchdog.h"
#include "google/protobuf/text_format.h"
#include "graph/executor.h"
#include "kernels/internal_error.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tools/interop/huggingface_config.h"
#include "tools/program/program.h"
#include "tools/recompute/choose.h"
#include "tools/runtime/runtime.h"
#include "tools/text/tokenizer_files.h"
#include "tools/train/step_tracer.h"
#include "tools/train/train.h"

namespace shardgraph {
namespace {

constexpr int kBatchesAhead = 2;  // read while the lanes work

std::string TextOf(const TrainConfig& config) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(config, &text);
  return text;
}

// How long a save that runs may take to end when the run has failed.
constexpr absl::Duration kSaveGrace = absl::Seconds(5);

class RankRun {
 public:
  // `end`: ends the process, for the watchdog.
  RankRun(const PreparedRun& run, Runtime& runtime,
          std::function<void(const absl::Status&)> end)
      : run_(run),
        config_(run.config),
        directory_(run.flags.run_directory),
        usual_(absl::Seconds(config_.run().timeout_seconds())),
        startup_(absl::Seconds(config_.run().startup_timeout_seconds())),
        saving_(Watchdog::LimitOf(
            absl::Seconds(config_.checkpoint().timeout_seconds()))),
        runtime_(runtime),
        end_(std::move(end)) {}

  // The number of steps taken.
  absl::StatusOr<int64_t> Run() {
    SG_RETURN_IF_ERROR(Plan());
    ExecutorOptions options = runtime_.ForExecutor();
    options.capture = config_.run().capture();
    ReportSteps(*plan_, &options);
    tracer_ = StepTracer::Create(config_, *plan_, runtime_);
    if (tracer_ != nullptr) options.trace = tracer_->recorder();
    if (run_.tune_executor) run_.tune_executor(plan_->plan, &options);
    SG_ASSIGN_OR_RETURN(executor_, Executor::Create(plan_->plan, options));
    // Ranks may wait for the one with the slowest disk.
    runtime_.SetTimeout(saving_);
    SG_ASSIGN_OR_RETURN(const int64_t first_step, Restore());
    SG_RETURN_IF_ERROR(OpenData());
    if (runtime_.rank() == 0) SG_RETURN_IF_ERROR(OpenSinks(first_step));
    SG_RETURN_IF_ERROR(runtime_.Barrier());
    runtime_.SetTimeout(startup_);
    return Train(first_step);
  }

  // Tells the ranks that wait for this one why it ends. From any thread.
  void Abort(const absl::Status& reason) {
    if (executor_ != nullptr) executor_->Abort(reason);
    runtime_.Abort(reason);
  }

  // Where each lane stands or, after an error, has stopped; empty before there
  // are any.
  std::string Progress() const {
    return executor_ == nullptr ? "" : executor_->Progress();
  }
  // The signal that asked this rank to stop; 0: none.
  int stop_signal() const {
    return stop_signal_.has_value() ? stop_signal_->received() : 0;
  }
  // Ends a save that still runs; ends the process when it does not end.
  void EndSave(const absl::Status& reason) {
    if (saver_ == nullptr || saver_->Cancel(kSaveGrace)) return;
    std::fprintf(stderr, "train: %s\n", std::string(reason.message()).c_str());
    std::fflush(stderr);
    end_(reason);
  }

 private:
  int shard() const { return runtime_.rank() % plan_->groups.shard; }

  absl::Status Plan() {
    PlanRequest request;
    request.config = &config_;
    request.world_size = runtime_.world_size();
    request.target = run_.target;
    request.workspace = runtime_.Workspace(request.target);
    if (config_.shard().recompute() == AUTO) {
      SG_ASSIGN_OR_RETURN(
          const RecomputeChoice choice,
          ChooseOnce(request, absl::StrCat(directory_, "/recompute.textproto"),
                     runtime_));
      ApplyRecompute(choice, &config_);
      std::string why = DescribeRecompute(choice);
      why.pop_back();  // the end of its last line
      Say(why);
    }
    SG_ASSIGN_OR_RETURN(plan_, MakeTrainingPlan(request));
    SG_RETURN_IF_ERROR(runtime_.CheckSame("the config", TextOf(config_)));
    SG_RETURN_IF_ERROR(runtime_.CheckSame("the plan", plan_->plan.hash));
    if (runtime_.rank() != 0) return absl::OkStatus();
    SG_RETURN_IF_ERROR(WriteDurableFile(
        absl::StrCat(directory_, "/config.textproto"), TextOf(config_)));
    SG_RETURN_IF_ERROR(WriteDurableFile(absl::StrCat(directory_, "/plan.txt"),
                                        PrintPlan(plan_->plan)));
    std::printf(
        "%s: %s parameters in %d units, %d rank%s x %s, plan %s, %.1f MB per "
        "rank and %.1f MB for copies that are saved\n",
        directory_.c_str(),
        PrintRate(static_cast<double>(plan_->model->numel())).c_str(),
        static_cast<int>(plan_->layout.units().size()), runtime_.world_size(),
        runtime_.world_size() == 1 ? "" : "s", runtime_.DeviceInWords().c_str(),
        plan_->plan.hash.c_str(), plan_->plan.memory.arena_bytes / 1e6,
        plan_->snapshot_bytes / 1e6);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  CheckpointRank Here() {
    CheckpointRank rank;
    rank.config = &config_;
    rank.plan = plan_.get();
    rank.executor = executor_.get();
    rank.rank = runtime_.rank();
    rank.world_size = runtime_.world_size();
    return rank;
  }

  std::string CheckpointFolder() const {
    return absl::StrCat(directory_, "/checkpoints");
  }

  // Weights, moments and state; returns the first step to run.
  absl::StatusOr<int64_t> Restore() {
    const StepState fresh = FreshState(config_);
    SG_RETURN_IF_ERROR(
        executor_->WriteBuffer(plan_->state, 0, &fresh, sizeof(fresh)));
    if (runtime_.rank() == 0) {
      for (const std::string& line : ClearInterruptedSaves(CheckpointFolder()))
        std::fprintf(stderr, "%s\n", line.c_str());
    }
    // All look at the same checkpoints.
    SG_RETURN_IF_ERROR(runtime_.Barrier());
    const std::string& resume = run_.flags.resume;
    std::optional<CheckpointManifest> manifest;
    if (resume == "auto") {
      SG_ASSIGN_OR_RETURN(
          manifest,
          LoadNewestCheckpoint(CheckpointFolder(), Here(), [this](bool mine) {
            return runtime_.Agree(mine);
          }));
    } else if (resume != "never") {
      const auto named = LoadCheckpoint(resume, Here());
      if (!named.ok()) return DamageIsWrongInput(named.status());
      manifest = *named;
    }
    if (manifest.has_value()) {
      SG_RETURN_IF_ERROR(CheckContinues(*manifest, config_));
      KeepConfig(*manifest);
      Say(absl::StrCat("resumed after step ", manifest->step()));
      return manifest->step();
    }
    return Initialize();
  }

  // Starting weights; 0, the first step to run.
  absl::StatusOr<int64_t> Initialize() {
    const CheckpointSpec& spec = config_.checkpoint();
    const std::string& from = spec.initialize_from();
    const bool checkpoint = ResolveCheckpoint(from).ok();
    const std::vector<std::string> patterns(
        spec.initialize_parameters().begin(),
        spec.initialize_parameters().end());
    // What a Hugging Face folder holds comes after: the others stay.
    if (from.empty() || checkpoint || !patterns.empty() ||
        plan_->model->has_adapters()) {
      SG_RETURN_IF_ERROR(InitializeParameters(*plan_, config_.run().seed(),
                                              shard(), *executor_));
    }
    if (from.empty()) return 0;
    if (checkpoint) {
      LoadOptions options;
      options.weights_only = true;
      options.parameters = patterns;
      const auto manifest = LoadCheckpoint(from, Here(), options);
      if (!manifest.ok()) return DamageIsWrongInput(manifest.status());
      if (patterns.empty()) KeepConfig(*manifest);
    } else {
      SG_RETURN_IF_ERROR(
          LoadHuggingFaceWeights(from, *plan_, shard(), *executor_, patterns));
      const auto text = ReadWholeFile(absl::StrCat(from, "/config.json"));
      if (patterns.empty() && text.ok()) extra_[kConfigExtra] = *text;
    }
    Say(absl::StrCat("weights from ", from));
    return 0;
  }

  // The config.json that the model came with once, special tokens and all.
  void KeepConfig(const CheckpointManifest& manifest) {
    const auto text = manifest.extra().find(kConfigExtra);
    if (text != manifest.extra().end()) extra_[kConfigExtra] = text->second;
  }

  absl::Status OpenData() {
    SG_ASSIGN_OR_RETURN(training_,
                        OpenTraining(config_.data(), run_.vocab_size));
    SG_ASSIGN_OR_RETURN(validation_,
                        OpenHeldOut(config_.data(), run_.vocab_size));
    return absl::OkStatus();
  }

  absl::Status OpenSinks(int64_t first_step) {
    const DataSpec& data = config_.data();
    const std::string tokenizer = FindTokenizerFile(
        data.sources_size() > 0 ? data.sources(0).path() : data.path());
    std::error_code error;
    if (!tokenizer.empty()) {
      std::filesystem::copy_file(
          tokenizer,
          absl::StrCat(directory_, "/",
                       std::filesystem::path(tokenizer).filename().string()),
          std::filesystem::copy_options::overwrite_existing, error);
      if (error)
        return absl::UnavailableError(
            absl::StrCat("cannot copy ", tokenizer, ": ", error.message()));
    }
    SG_ASSIGN_OR_RETURN(
        std::unique_ptr<MetricsSink> jsonl,
        MetricsJsonl::Open(absl::StrCat(directory_, "/metrics.jsonl"),
                           first_step));
    sinks_.push_back(std::move(jsonl));
    SG_ASSIGN_OR_RETURN(std::unique_ptr<MetricsSink> events,
                        TensorBoardWriter::Open(directory_, first_step));
    sinks_.push_back(std::move(events));
    ProgressOptions progress;
    progress.file = stdout;
    progress.steps = config_.run().steps();
    progress.log_every = config_.run().log_every();
    progress.terminal = IsTerminal(stdout);
    sinks_.push_back(std::make_unique<ProgressLine>(progress));
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Train(int64_t first_step) {
    const BatchShape shape = {config_.data().batch_size(),
                              config_.data().micro_batch_size(),
                              runtime_.world_size(), runtime_.rank()};
    TrainerOptions options;
    options.config = &config_;
    options.plan = plan_.get();
    options.executor = executor_.get();
    options.rank = runtime_.rank();
    options.world_size = runtime_.world_size();
    prefetcher_ = std::make_unique<BatchPrefetcher>(
        [this, shape](int64_t step, int64_t micro, Batch* batch) {
          return TrainingBatch(*training_, shape, config_.run().seed(), step,
                               micro, batch);
        },
        MicroBatches(config_.data(), runtime_.world_size()), kBatchesAhead);
    options.training = [this](int64_t step, int64_t micro, Batch* batch) {
      return prefetcher_->Next(step, micro, batch);
    };
    if (validation_ != nullptr) {
      const int64_t all = validation_->all_sequences(),
                    wanted = config_.evaluation().sequences();
      options.validation_sequences = wanted == 0 ? all : std::min(all, wanted);
      options.final_validation_sequences = config_.evaluation().all_at_end()
                                               ? all
                                               : options.validation_sequences;
      options.validation = [this, shape](int64_t sequences, int64_t micro,
                                         Batch* batch) {
        return EvaluationBatch(*validation_, shape, sequences, micro, batch);
      };
    }
    options.peak_flops =
        runtime_.world_size() * (plan_->compute == DType::kF32
                                     ? run_.target.fp32_flops()
                                     : run_.target.bf16_flops());
    for (const std::unique_ptr<MetricsSink>& sink : sinks_)
      options.metrics.push_back(sink.get());
    if (tracer_ != nullptr) {
      tracer_->StartRun(first_step);
      options.begin_step = [this](int64_t step) { tracer_->BeginStep(step); };
    }
    options.end_step = [this](int64_t step) -> absl::Status {
      SayWhetherEager();
      saver_->Look();
      return tracer_ == nullptr ? absl::OkStatus() : tracer_->EndStep(step);
    };
    MakeSaver();
    options.save = [this](int64_t step, bool last) { return Save(step, last); };
    // The first step may take longer: memory is touched, kernels settle.
    options.warmed_up = [this] { runtime_.SetTimeout(usual_); };
    stop_signal_.emplace();
    StopAgreement::Max max;
    if (runtime_.world_size() > 1)
      max = [this](int64_t mine) { return runtime_.Max(mine); };
    StopAgreement agreement([this] { return stop_signal() != 0; },
                            std::move(max));
    options.stop = [&agreement](double step_seconds) {
      return agreement.AfterStep(step_seconds);
    };
    Watchdog watchdog({.rank = runtime_.rank(),
                       .advance = [this] { return executor_->Advance(); },
                       .where = [this] { return executor_->Progress(); },
                       .abort = [this](const absl::Status& r) { Abort(r); },
                       .end = end_,
                       .grace = std::min(usual_, absl::Seconds(10))});
    watchdog.Start(
        std::clamp(usual_ / 20, absl::Milliseconds(20), absl::Seconds(5)));
    options.watchdog = &watchdog;
    return Trainer(options).Train(first_step);
  }

  // Once.
  void SayWhetherEager() {
    if (said_eager_ || executor_->EagerReason().empty()) return;
    said_eager_ = true;
    std::fprintf(stderr, "note: rank %d runs each step eagerly: %s\n",
                 runtime_.rank(), executor_->EagerReason().c_str());
  }

  void MakeSaver() {
    CheckpointSaverOptions options;
    options.rank = Here();
    options.folder = CheckpointFolder();
    options.extra = extra_;
    if (runtime_.world_size() > 1) {
      options.store = &runtime_.store();
      options.max = [this](int64_t mine) { return runtime_.Max(mine); };
    }
    saver_ = std::make_unique<CheckpointSaver>(std::move(options));
  }

  absl::Status Save(int64_t step, bool last) {
    // Ranks may wait for one whose save before this one still runs.
    runtime_.SetTimeout(saving_);
    SG_RETURN_IF_ERROR(last ? saver_->SaveAndWait(step) : saver_->Save(step));
    runtime_.SetTimeout(usual_);
    return absl::OkStatus();
  }

  void Say(const std::string& text) {
    if (runtime_.rank() != 0) return;
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }

  const PreparedRun& run_;
  TrainConfig config_;  // what AUTO stands for in its place
  const std::string& directory_;
  const absl::Duration usual_, startup_, saving_;  // timeouts
  Runtime& runtime_;
  const std::function<void(const absl::Status&)> end_;
  std::unique_ptr<TrainingPlan> plan_;
  std::unique_ptr<StepTracer> tracer_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<TokenMix> training_;
  std::unique_ptr<TokenData> validation_;
  std::unique_ptr<BatchPrefetcher> prefetcher_;  // reads training_
  std::vector<std::unique_ptr<MetricsSink>> sinks_;
  std::map<std::string, std::string> extra_;  // of checkpoints
  std::unique_ptr<CheckpointSaver> saver_;
  std::optional<StopSignal> stop_signal_;
  bool said_eager_ = false;
};

}  // namespace

absl::Status RunRank(const PreparedRun& run,
                     const LaunchEnvironment& environment) {
  RuntimeOptions options;
  options.device = run.config.run().device();
  options.threads = run.config.run().threads();
  options.startup_timeout =
      absl::Seconds(run.config.run().startup_timeout_seconds());
  if (run.config.run().trace_steps() > 0 && environment.rank == 0)
    options.graph_files = absl::StrCat(run.flags.run_directory, "/graph_");
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                      Runtime::Create(environment, options));
  RankRun rank(run, *runtime, [&environment](const absl::Status& reason) {
    WriteErrorFile(environment.error_file, std::string(reason.message()),
                   absl::Now())
        .IgnoreError();
    std::_Exit(1);  // threads that are stuck cannot be joined
  });
  const absl::StatusOr<int64_t> steps = rank.Run();
  if (!steps.ok()) {
    rank.Abort(steps.status());
    if (!IsWrongInput(steps.status()))
      std::fputs(rank.Progress().c_str(), stderr);
    rank.EndSave(steps.status());
    return steps.status();
  }
  if (*steps >= run.config.run().steps()) return absl::OkStatus();
  const int signal = rank.stop_signal();
  return absl::CancelledError(absl::StrCat(
      signal == 0 ? "stopped because another rank was asked to"
                  : absl::StrCat("stopped by ", strsignal(signal)),
      " after step ", *steps, " of ", run.config.run().steps(),
      "; its checkpoint is saved: the same command goes on from there\n"));
}

}  // namespace shardgraph
