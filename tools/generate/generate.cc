#include "tools/generate/generate.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "tools/presets/presets.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"
#include "tools/runtime/runtime.h"
#include "tools/text/tokenizer.h"
#include "tools/text/tokenizer_files.h"

namespace shardgraph {
namespace {

constexpr char kUsage[] =
    "generate: continues a prompt with a trained model.\n"
    "  generate --checkpoint=RUN_OR_CHECKPOINT --prompt=TEXT [flags]";
constexpr int64_t kPrefillLength = 64;  // tokens of the prompt at a time

// The tokenizer that the model was trained with: beside the run's checkpoints.
absl::StatusOr<std::unique_ptr<Tokenizer>> FindTokenizer(
    const std::string& checkpoint) {
  std::filesystem::path folder(checkpoint);
  for (int up = 0; up < 3; ++up, folder = folder.parent_path()) {
    const std::string file = FindTokenizerFile(folder.string());
    if (!file.empty()) return LoadTokenizer(folder.string());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no ", absl::StrJoin(kTokenizerFiles, " or "), " beside ",
      checkpoint,
      "; copy the one that `prepare` wrote into the run directory"));
}

// A loaded model on one rank that continues sequences, one at a time.
class Generator {
 public:
  Generator(const TrainConfig& config, const std::string& target,
            Runtime& runtime)
      : config_(config), target_(target), runtime_(runtime) {
    // However it was trained: these ranks share the model.
    config_.mutable_shard()->set_strategy(FULL_SHARD);
    config_.mutable_shard()->clear_shard_group_size();
    config_.mutable_shard()->clear_reshard_group_size();
  }

  absl::Status Load(const std::string& checkpoint, int64_t tokens_needed) {
    SG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                        MakeModel(config_.model()));
    const int64_t limit = model->max_positions();
    cache_length_ = limit > 0 ? std::min(limit, tokens_needed) : tokens_needed;
    PlanRequest request;
    request.config = &config_;
    request.world_size = runtime_.world_size();
    SG_ASSIGN_OR_RETURN(request.target, LoadTargetPreset(target_));
    request.workspace = runtime_.Workspace(request.target);
    request.train = false;
    request.evaluate = false;
    request.generate = true;
    prefill_length_ = std::min(kPrefillLength, cache_length_);
    request.generate_shape = {1, prefill_length_, cache_length_};
    SG_ASSIGN_OR_RETURN(plan_, MakeTrainingPlan(request));
    SG_RETURN_IF_ERROR(runtime_.CheckSame("the plan", plan_->plan.hash));
    SG_ASSIGN_OR_RETURN(executor_,
                        Executor::Create(plan_->plan, runtime_.ForExecutor()));
    CheckpointRank rank;
    rank.config = &config_;
    rank.plan = plan_.get();
    rank.executor = executor_.get();
    rank.rank = runtime_.rank();
    rank.world_size = runtime_.world_size();
    SG_RETURN_IF_ERROR(DamageIsWrongInput(
        LoadCheckpoint(checkpoint, rank, {.weights_only = true}).status()));
    prefill_ = Bind("prefill");
    decode_ = Bind("decode");
    return absl::OkStatus();
  }

  // Tokens that fit behind one another.
  int64_t capacity() const { return cache_length_; }

  // Takes in the prompt; its logits are then those of the token behind it.
  absl::Status Start(const std::vector<int32_t>& prompt) {
    for (const int32_t token : prompt) {
      if (token < plan_->model->vocab_size()) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "--prompt has the token ", token, ", the model a vocabulary of ",
          plan_->model->vocab_size(),
          "; use the tokenizer that the model was trained with"));
    }
    position_ = 0;
    const int64_t n = static_cast<int64_t>(prompt.size());
    for (int64_t begin = 0; begin < n; begin += prefill_length_) {
      const int64_t count = std::min(prefill_length_, n - begin);
      std::vector<int32_t> tokens(prefill_length_, 0);
      std::copy_n(prompt.begin() + begin, count, tokens.begin());
      SG_RETURN_IF_ERROR(
          Run(prefill_, tokens, static_cast<int32_t>(count - 1)));
      position_ += count;
    }
    return absl::OkStatus();
  }

  absl::Status Append(int32_t token) {
    SG_RETURN_IF_ERROR(Run(decode_, {token}, 0));
    ++position_;
    return absl::OkStatus();
  }

  const std::vector<float>& logits() const { return logits_; }

 private:
  struct BoundPhase {
    PhaseId phase = kNone;
    ValueId tokens = kNone, last_rows = kNone, logits = kNone;
  };

  BoundPhase Bind(const std::string& name) const {
    const Graph& graph = plan_->plan.graph;
    return {graph.FindPhase(name), graph.inputs.at(name + "/tokens"),
            graph.inputs.at(name + "/last_rows"),
            graph.outputs.at(name + "/logits")};
  }

  absl::Status Run(const BoundPhase& phase, const std::vector<int32_t>& tokens,
                   int32_t last_row) {
    SG_RETURN_IF_ERROR(executor_->Stage(plan_->state,
                                        offsetof(StepState, position),
                                        &position_, sizeof(position_)));
    SG_RETURN_IF_ERROR(executor_->StageValue(phase.tokens, tokens.data(),
                                             tokens.size() * sizeof(int32_t)));
    SG_RETURN_IF_ERROR(
        executor_->StageValue(phase.last_rows, &last_row, sizeof(last_row)));
    SG_RETURN_IF_ERROR(executor_->Run(phase.phase));
    const TensorType& type = plan_->plan.graph.values[phase.logits].type;
    std::vector<char> raw(type.span_bytes());
    SG_RETURN_IF_ERROR(executor_->Read(phase.logits, raw.data(), raw.size()));
    logits_.resize(type.num_elements());
    for (size_t i = 0; i < logits_.size(); ++i) {
      logits_[i] =
          type.dtype == DType::kF32
              ? reinterpret_cast<const float*>(raw.data())[i]
              : float{reinterpret_cast<const BFloat16*>(raw.data())[i]};
    }
    return absl::OkStatus();
  }

  TrainConfig config_;
  const std::string target_;
  Runtime& runtime_;
  int64_t cache_length_ = 0, prefill_length_ = 0;
  std::unique_ptr<TrainingPlan> plan_;
  std::unique_ptr<Executor> executor_;
  BoundPhase prefill_, decode_;
  int64_t position_ = 0;
  std::vector<float> logits_;
};

}  // namespace

absl::StatusOr<GenerateFlags> ParseGenerateFlags(
    const std::vector<std::string>& args) {
  GenerateFlags flags;
  int64_t seed = 1;
  std::vector<std::string> rest;
  SG_RETURN_IF_ERROR(ParseFlags(
      kUsage, args,
      {{"checkpoint", &flags.checkpoint, "a run directory or a checkpoint"},
       {"prompt", &flags.prompt, "the text to continue"},
       {"max_tokens", &flags.max_tokens, "tokens to generate; 256"},
       {"num_samples", &flags.num_samples, "continuations; 1"},
       {"temperature", &flags.sampling.temperature,
        "0 takes the most likely token; 0.8"},
       {"top_k", &flags.sampling.top_k,
        "draw from the k most likely tokens; 0: all"},
       {"seed", &seed, "of the draws; 1"},
       {"nproc", &flags.num_ranks, "ranks that share the model; 1"},
       {"device", &flags.device, "auto, cpu or cuda"}},
      &rest));
  if (!rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", rest[0],
                     "\"; the prompt goes into --prompt"));
  }
  if (flags.checkpoint.empty()) {
    return absl::InvalidArgumentError(
        "--checkpoint is missing; give the directory of a run");
  }
  if (flags.prompt.empty())
    return absl::InvalidArgumentError(
        "--prompt is empty; give it at least one character");
  const auto require = [](bool ok, absl::string_view flag, auto value,
                          absl::string_view allowed) {
    return ok ? absl::OkStatus()
              : absl::InvalidArgumentError(absl::StrCat(
                    "--", flag, " is ", value, "; it must be ", allowed));
  };
  SG_RETURN_IF_ERROR(require(flags.max_tokens >= 1, "max_tokens",
                             flags.max_tokens, "1 or more"));
  SG_RETURN_IF_ERROR(require(flags.num_samples >= 1, "num_samples",
                             flags.num_samples, "1 or more"));
  SG_RETURN_IF_ERROR(require(flags.sampling.temperature >= 0, "temperature",
                             flags.sampling.temperature, "0 or more"));
  SG_RETURN_IF_ERROR(require(flags.sampling.top_k >= 0, "top_k",
                             flags.sampling.top_k, "0 (all) or more"));
  SG_RETURN_IF_ERROR(require(flags.num_ranks >= 1 && flags.num_ranks <= 1024,
                             "nproc", flags.num_ranks, "1 to 1024"));
  flags.sampling.seed = static_cast<uint64_t>(seed);
  flags.checkpoint = UserPath(flags.checkpoint);
  return flags;
}

absl::Status Generate(
    const GenerateFlags& flags, const LaunchEnvironment& environment,
    const std::function<void(int64_t sample, const std::string& text)>& emit) {
  SG_ASSIGN_OR_RETURN(const std::string checkpoint,
                      ResolveCheckpoint(flags.checkpoint));
  const absl::StatusOr<CheckpointManifest> manifest =
      ReadCheckpointManifest(checkpoint);
  if (!manifest.ok()) return DamageIsWrongInput(manifest.status());
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                      FindTokenizer(checkpoint));
  std::vector<int32_t> prompt = tokenizer->Prefix();
  tokenizer->Encode(flags.prompt, &prompt);

  SG_ASSIGN_OR_RETURN(
      const DeviceChoice device,
      ChooseDevice(flags.device, std::max(1, environment.local_world_size)));
  RuntimeOptions options;
  options.device = device.device;
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                      Runtime::Create(environment, options));
  Generator generator(manifest->config(), device.target, *runtime);
  SG_RETURN_IF_ERROR(generator.Load(
      checkpoint, static_cast<int64_t>(prompt.size()) + flags.max_tokens));
  SG_RETURN_IF_ERROR(runtime->Barrier());
  runtime->SetTimeout(absl::Seconds(100));
  if (static_cast<int64_t>(prompt.size()) >= generator.capacity()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt has ", prompt.size(), " tokens, the model ",
                     generator.capacity(), " positions; shorten the prompt"));
  }
  const int64_t count =
      std::min<int64_t>(flags.max_tokens, generator.capacity() - prompt.size());
  for (int64_t sample = 0; sample < flags.num_samples; ++sample) {
    SG_RETURN_IF_ERROR(generator.Start(prompt));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t token =
          SampleToken(generator.logits(), flags.sampling, sample, i);
      if (token == tokenizer->EndOfText()) break;
      if (environment.rank == 0) emit(sample, tokenizer->Decode({token}));
      if (i + 1 < count) SG_RETURN_IF_ERROR(generator.Append(token));
    }
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
