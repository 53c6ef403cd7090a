#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/config/train_config.h"
#include "fsdp/data/batches.h"
#include "graph/model/module.h"
#include "kernels/status_macros.h"
#include "tools/interop/huggingface_config.h"
#include "tools/presets/presets.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"
#include "tools/runtime/runtime.h"
#include "tools/train/train.h"

namespace shardgraph {
namespace {

constexpr char kUsage[] =
    "train: trains a model on sharded ranks.\n"
    "  train --config=NAME_OR_PATH [--nproc=N] [flags] [field.path=value ...]";

// "runs/quickstart-20260131-093000" where the user is.
std::string DefaultDirectory(const std::string& config) {
  char time[32];
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  std::strftime(time, sizeof(time), "%Y%m%d-%H%M%S", &local);
  return UserPath(absl::StrCat(
      "runs/", std::filesystem::path(config).stem().string(), "-", time));
}

absl::Status MakeWritable(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string probe = absl::StrCat(directory, "/.writable");
  std::FILE* file = error ? nullptr : std::fopen(probe.c_str(), "w");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write to the run directory ", directory, ": ",
        error ? error.message() : std::string("it is not writable"),
        "; choose another with --run_dir=DIR"));
  }
  std::fclose(file);
  std::filesystem::remove(probe, error);
  return absl::OkStatus();
}

// Full path of the checkpoint or Hugging Face folder that the starting weights
// come from, and its model where the config has none.
absl::Status ResolveInitialWeights(TrainConfig* config) {
  CheckpointSpec& spec = *config->mutable_checkpoint();
  if (spec.initialize_from().empty()) return absl::OkStatus();
  spec.set_initialize_from(UserPath(spec.initialize_from()));
  const absl::StatusOr<std::string> checkpoint =
      ResolveCheckpoint(spec.initialize_from());
  const bool needs_model =
      config->model().kind_case() == ModelSpec::KIND_NOT_SET;
  if (checkpoint.ok()) {
    spec.set_initialize_from(*checkpoint);
    const absl::StatusOr<CheckpointManifest> manifest =
        ReadCheckpointManifest(*checkpoint);
    if (!manifest.ok()) return DamageIsWrongInput(manifest.status());
    if (needs_model) *config->mutable_model() = manifest->config().model();
    return absl::OkStatus();
  }
  if (!needs_model) return absl::OkStatus();
  SG_ASSIGN_OR_RETURN(*config->mutable_model(),
                      ReadHuggingFaceConfig(spec.initialize_from()));
  return absl::OkStatus();
}

DocumentOptions DocumentsOf(const DataSpec& data) {
  return {data.mask_documents(),
          data.has_end_of_text() ? data.end_of_text() : -1};
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenMix>> OpenTraining(const DataSpec& data,
                                                       int64_t vocab_size) {
  std::vector<TokenMix::Source> sources;
  for (const DataSource& source : data.sources())
    sources.push_back({source.path(), source.weight()});
  if (sources.empty()) sources.push_back({data.path(), 1});
  return TokenMix::Open(sources, "train.bin", data.sequence_length(),
                        vocab_size, DocumentsOf(data));
}

absl::StatusOr<std::unique_ptr<TokenData>> OpenHeldOut(const DataSpec& data,
                                                       int64_t vocab_size) {
  std::vector<std::string> paths;
  if (!data.validation_path().empty()) {
    paths.push_back(data.validation_path());
  } else {
    std::vector<std::string> training = {data.path()};
    for (const DataSource& source : data.sources())
      training.push_back(source.path());
    std::error_code error;
    for (const std::string& path : training) {
      if (std::filesystem::is_directory(path, error)) paths.push_back(path);
    }
  }
  if (paths.empty()) return std::unique_ptr<TokenData>();
  return TokenData::Open(paths, "val.bin", data.sequence_length(), vocab_size,
                         DocumentsOf(data));
}

absl::StatusOr<TrainFlags> ParseTrainFlags(
    const std::vector<std::string>& args) {
  TrainFlags flags;
  SG_RETURN_IF_ERROR(ParseFlags(
      kUsage, args,
      {{"config", &flags.config,
        "a preset (quickstart, gpt2_124m, ...) or a config file"},
       {"nproc", &flags.num_ranks, "ranks to start on this host; 1"},
       {"run_dir", &flags.run_directory,
        "where the run is written; runs/NAME-TIME"},
       {"resume", &flags.resume,
        "auto (go on if the run has checkpoints), never, or a checkpoint"},
       {"device", &flags.device, "auto, cpu or cuda"}},
      &flags.overrides));
  if (flags.config.empty()) {
    return absl::InvalidArgumentError(
        "--config is missing; for example --config=quickstart");
  }
  if (flags.num_ranks < 1 || flags.num_ranks > 1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--nproc is ", flags.num_ranks, "; it must be 1 to 1024 ranks"));
  }
  return flags;
}

absl::StatusOr<PreparedRun> PrepareRun(TrainFlags flags, int world_size,
                                       int local_ranks) {
  PreparedRun run;
  SG_ASSIGN_OR_RETURN(run.config, LoadConfig(flags.config, flags.overrides));
  TrainConfig& config = run.config;
  if (!flags.device.empty()) config.mutable_run()->set_device(flags.device);
  SG_RETURN_IF_ERROR(ResolveInitialWeights(&config));
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      MakeModel(config.model()));
  run.vocab_size = model->vocab_size();
  ResolveTrainConfig(model->max_positions(), world_size, &config);
  SG_RETURN_IF_ERROR(
      ValidateTrainConfig(config, model->max_positions(), world_size));
  SG_ASSIGN_OR_RETURN(DeviceChoice device,
                      ChooseDevice(config.run().device(), local_ranks));
  config.mutable_run()->set_device(device.device);
  const bool named = !config.run().target().empty();
  SG_ASSIGN_OR_RETURN(run.target, LoadTargetPreset(named ? config.run().target()
                                                         : device.target));
  if (!named || device.device == "cpu") run.note = std::move(device.note);
  config.mutable_run()->set_target(run.target.name());

  DataSpec& data = *config.mutable_data();
  if (!data.path().empty()) data.set_path(UserPath(data.path()));
  for (DataSource& source : *data.mutable_sources())
    source.set_path(UserPath(source.path()));
  if (!data.validation_path().empty())
    data.set_validation_path(UserPath(data.validation_path()));
  // Opened here to name what is wrong before any rank is started; one sequence
  // is read for its tokens.
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<TokenMix> training,
                      OpenTraining(data, run.vocab_size));
  Batch batch;
  SG_RETURN_IF_ERROR(TrainingBatch(*training, {1, 1, 1, 0}, 0, 0, 0, &batch));
  SG_RETURN_IF_ERROR(OpenHeldOut(data, run.vocab_size).status());

  if (flags.run_directory.empty())
    flags.run_directory = config.run().directory();
  if (flags.run_directory.empty() && world_size > 1 &&
      flags.num_ranks != world_size) {
    // Ranks that others start would each make up a name of their own.
    return absl::InvalidArgumentError(absl::StrCat(
        "--run_dir is missing: the ", world_size,
        " ranks of a job need the same; give --run_dir=DIR to all of them"));
  }
  flags.run_directory = flags.run_directory.empty()
                            ? DefaultDirectory(flags.config)
                            : UserPath(flags.run_directory);
  config.mutable_run()->set_directory(flags.run_directory);
  if (flags.resume != "auto" && flags.resume != "never") {
    const auto resume = [&]() -> absl::StatusOr<std::string> {
      SG_ASSIGN_OR_RETURN(std::string folder,
                          ResolveCheckpoint(UserPath(flags.resume)));
      SG_RETURN_IF_ERROR(ReadCheckpointManifest(folder).status());
      return folder;
    }();
    if (!resume.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--resume is \"", flags.resume, "\", but ", resume.status().message(),
          "; use auto, never or a checkpoint folder"));
    }
    flags.resume = *resume;
  }
  SG_RETURN_IF_ERROR(MakeWritable(flags.run_directory));
  run.flags = std::move(flags);
  return run;
}

}  // namespace shardgraph
