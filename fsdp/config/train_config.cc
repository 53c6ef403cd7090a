#include "fsdp/config/train_config.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "fsdp/config/text_config.h"
#include "fsdp/config/validate_recompute.h"
#include "fsdp/shard/strategy.h"
#include "graph/fusion.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr absl::string_view kSuffix = ".textproto";
constexpr int32_t kMaxPrefetch = 1'000'000;  // units; no model has so many

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is a directory, not a config file; name a file in it, "
                     "or a preset"));
  }
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file)
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot read the config ", path, "; is it a file that you may read?"));
  return text.str();
}

// Text of a preset or a file.
absl::StatusOr<std::pair<std::string, std::string>> FindText(
    absl::string_view what, absl::string_view name_or_path,
    absl::string_view directory) {
  const std::string preset =
      absl::StrCat(directory, "/", name_or_path, kSuffix);
  std::error_code error;
  const bool plain = !absl::StrContains(name_or_path, "/");
  for (const std::string& path :
       {plain ? preset : std::string(), std::string(name_or_path)}) {
    if (path.empty() || !std::filesystem::exists(path, error)) continue;
    SG_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
    return std::pair(path, std::move(text));
  }
  const std::vector<std::string> names = PresetNames(directory);
  const std::string nearest = NearestName(name_or_path, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no ", what, " \"", name_or_path, "\"",
      nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
      "; give the path of a file or one of: ", absl::StrJoin(names, ", ")));
}

template <typename T>
absl::Status Require(bool ok, absl::string_view field, const T& value,
                     absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be ", allowed));
}

absl::Status ValidateOptimizer(const OptimizerSpec& spec) {
  SG_RETURN_IF_ERROR(Require(spec.learning_rate() >= 0,
                             "optimizer.learning_rate", spec.learning_rate(),
                             "0 or more, for example 3e-4"));
  SG_RETURN_IF_ERROR(Require(spec.beta1() >= 0 && spec.beta1() < 1,
                             "optimizer.beta1", spec.beta1(),
                             "in [0, 1), for example 0.9"));
  SG_RETURN_IF_ERROR(Require(spec.beta2() >= 0 && spec.beta2() < 1,
                             "optimizer.beta2", spec.beta2(),
                             "in [0, 1), for example 0.95"));
  SG_RETURN_IF_ERROR(Require(spec.epsilon() > 0, "optimizer.epsilon",
                             spec.epsilon(), "more than 0, for example 1e-8"));
  SG_RETURN_IF_ERROR(Require(spec.weight_decay() >= 0, "optimizer.weight_decay",
                             spec.weight_decay(), "0 or more"));
  SG_RETURN_IF_ERROR(Require(spec.momentum() >= 0 && spec.momentum() < 1,
                             "optimizer.momentum", spec.momentum(),
                             "in [0, 1), for example 0.9"));
  if (spec.kind() != OptimizerSpec::SGD) {
    SG_RETURN_IF_ERROR(Require(spec.momentum() == 0, "optimizer.momentum",
                               spec.momentum(),
                               "left out but with optimizer.kind=SGD"));
  }
  for (int i = 0; i < spec.groups_size(); ++i) {
    const ParameterGroup& group = spec.groups(i);
    const std::string field = absl::StrCat("optimizer.groups[", i, "].");
    SG_RETURN_IF_ERROR(Require(
        group.learning_rate_factor() >= 0, field + "learning_rate_factor",
        group.learning_rate_factor(), "0 or more, for example 0.1"));
    SG_RETURN_IF_ERROR(Require(group.weight_decay() >= 0,
                               field + "weight_decay", group.weight_decay(),
                               "0 or more"));
  }
  return Require(spec.max_gradient_norm() >= 0, "optimizer.max_gradient_norm",
                 spec.max_gradient_norm(),
                 "0 (no clipping) or more, for example 1.0");
}

absl::Status ValidateSchedule(const ScheduleSpec& spec) {
  SG_RETURN_IF_ERROR(Require(spec.warmup_steps() >= 0, "schedule.warmup_steps",
                             spec.warmup_steps(), "0 or more"));
  SG_RETURN_IF_ERROR(
      Require(spec.final_fraction() >= 0 && spec.final_fraction() <= 1,
              "schedule.final_fraction", spec.final_fraction(),
              "in [0, 1], for example 0.1"));
  SG_RETURN_IF_ERROR(Require(spec.decay_steps() >= 0, "schedule.decay_steps",
                             spec.decay_steps(), "0 (run.steps) or more"));
  if (spec.kind() != ScheduleSpec::WARMUP_STABLE_DECAY) {
    return Require(spec.stable_until() == 0, "schedule.stable_until",
                   spec.stable_until(),
                   "left out but with schedule.kind=WARMUP_STABLE_DECAY");
  }
  return Require(
      spec.stable_until() >= 0 && spec.stable_until() <= spec.decay_steps(),
      "schedule.stable_until", spec.stable_until(),
      absl::StrCat("0 to schedule.decay_steps = ", spec.decay_steps()));
}

absl::Status ValidateData(const DataSpec& spec, int64_t max_positions,
                          int world_size) {
  SG_RETURN_IF_ERROR(Require(spec.batch_size() >= 1, "data.batch_size",
                             spec.batch_size(), "1 or more"));
  SG_RETURN_IF_ERROR(Require(spec.sequence_length() >= 1,
                             "data.sequence_length", spec.sequence_length(),
                             "1 or more"));
  if (max_positions > 0 && spec.sequence_length() > max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.sequence_length is ", spec.sequence_length(),
                     ", but the model has ", max_positions,
                     " positions; set data.sequence_length to at most ",
                     max_positions, " or give the model more positions"));
  }
  if (!spec.path().empty() && spec.sources_size() > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.path is \"", spec.path(), "\", but data.sources has ",
        spec.sources_size(), " sources; leave one of the two out"));
  }
  SG_RETURN_IF_ERROR(Require(!spec.has_end_of_text() || spec.end_of_text() >= 0,
                             "data.end_of_text", spec.end_of_text(),
                             "a token: 0 or more"));
  SG_RETURN_IF_ERROR(Require(!spec.has_end_of_text() || spec.mask_documents(),
                             "data.end_of_text", spec.end_of_text(),
                             "left out but with data.mask_documents=true"));
  return Require(spec.micro_batch_size() >= 1, "data.micro_batch_size",
                 spec.micro_batch_size(), "1 or more");
}

absl::Status ValidateShard(const ShardSpec& spec, int world_size) {
  SG_RETURN_IF_ERROR(GroupsOf(spec, world_size).status());
  if (spec.reshard_after_forward() && !MayReshard(spec.strategy())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.reshard_after_forward is true, but shard.strategy is ",
        ShardStrategy_Name(spec.strategy()),
        ", which keeps parameters from forward to backward; leave it out, or "
        "set shard.strategy=FULL_SHARD"));
  }
  SG_RETURN_IF_ERROR(ValidateRecompute(spec));
  SG_RETURN_IF_ERROR(Require(
      spec.prefetch() >= 0 && spec.prefetch() <= kMaxPrefetch, "shard.prefetch",
      spec.prefetch(), absl::StrCat("0 to ", kMaxPrefetch, " units")));
  return Require(
      spec.max_units_in_flight() >= spec.prefetch() + 1,
      "shard.max_units_in_flight", spec.max_units_in_flight(),
      absl::StrCat("at least shard.prefetch + 1 = ", spec.prefetch() + 1));
}

absl::Status ValidateCheckpoint(const CheckpointSpec& spec) {
  SG_RETURN_IF_ERROR(Require(spec.every() >= 0, "checkpoint.every",
                             spec.every(), "0 or more steps"));
  SG_RETURN_IF_ERROR(Require(spec.keep_last() >= 0, "checkpoint.keep_last",
                             spec.keep_last(), "0 (all) or more"));
  SG_RETURN_IF_ERROR(Require(spec.keep_every() >= 0, "checkpoint.keep_every",
                             spec.keep_every(), "0 (none) or more steps"));
  SG_RETURN_IF_ERROR(Require(spec.timeout_seconds() > 0,
                             "checkpoint.timeout_seconds",
                             spec.timeout_seconds(), "more than 0"));
  SG_RETURN_IF_ERROR(Require(spec.stall_seconds() > 0,
                             "checkpoint.stall_seconds", spec.stall_seconds(),
                             "more than 0"));
  SG_RETURN_IF_ERROR(
      Require(spec.write_mb_per_second() >= 0, "checkpoint.write_mb_per_second",
              spec.write_mb_per_second(), "0 (no limit) or more"));
  if (spec.initialize_parameters_size() > 0 && spec.initialize_from().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "checkpoint.initialize_parameters is \"", spec.initialize_parameters(0),
        "\", but checkpoint.initialize_from is empty; give a checkpoint to "
        "take them from"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLossScale(const TrainConfig& config) {
  const LossScaleSpec& spec = config.precision().loss_scale();
  if (config.precision().compute() != FP16) {
    if (!config.precision().has_loss_scale()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("precision.loss_scale is given, but precision.compute is ",
                     Dtype_Name(config.precision().compute()),
                     ", whose range needs none; leave it out, or set "
                     "precision.compute=FP16"));
  }
  SG_RETURN_IF_ERROR(Require(spec.initial() >= 1 && spec.initial() <= 0x1p60,
                             "precision.loss_scale.initial", spec.initial(),
                             "1 or more, for example 65536"));
  SG_RETURN_IF_ERROR(
      Require(spec.growth_factor() >= 1, "precision.loss_scale.growth_factor",
              spec.growth_factor(), "1 (no growth) or more, for example 2"));
  SG_RETURN_IF_ERROR(
      Require(spec.backoff_factor() > 0 && spec.backoff_factor() < 1,
              "precision.loss_scale.backoff_factor", spec.backoff_factor(),
              "between 0 and 1, for example 0.5"));
  SG_RETURN_IF_ERROR(Require(
      spec.growth_interval() >= 1, "precision.loss_scale.growth_interval",
      spec.growth_interval(), "1 step or more, for example 2000"));
  return Require(
      config.run().non_finite() == RunSpec::SKIP, "run.non_finite",
      RunSpec::NonFinite_Name(config.run().non_finite()),
      "SKIP (or left out) with precision.compute=FP16, which finds its loss "
      "scale by steps that overflow");
}

absl::Status ValidateRun(const RunSpec& spec) {
  SG_RETURN_IF_ERROR(
      Require(spec.steps() >= 0, "run.steps", spec.steps(), "0 or more"));
  SG_RETURN_IF_ERROR(Require(spec.threads() >= 0 && spec.threads() <= 4096,
                             "run.threads", spec.threads(),
                             "0 (found from the machine) to 4096"));
  SG_RETURN_IF_ERROR(Require(spec.log_every() >= 1, "run.log_every",
                             spec.log_every(), "1 or more"));
  SG_RETURN_IF_ERROR(
      Require(spec.trace_steps() >= 0 && spec.trace_steps() <= 1000,
              "run.trace_steps", spec.trace_steps(), "0 (no trace) to 1000"));
  SG_RETURN_IF_ERROR(
      Require(spec.trace_first_step() >= 0, "run.trace_first_step",
              spec.trace_first_step(),
              "0 (once the run has settled) or the number of a step"));
  SG_RETURN_IF_ERROR(Require(spec.timeout_seconds() > 0, "run.timeout_seconds",
                             spec.timeout_seconds(), "more than 0"));
  SG_RETURN_IF_ERROR(Require(spec.startup_timeout_seconds() > 0,
                             "run.startup_timeout_seconds",
                             spec.startup_timeout_seconds(), "more than 0"));
  return Require(spec.device() == "auto" || spec.device() == "cpu" ||
                     spec.device() == "cuda",
                 "run.device", absl::StrCat("\"", spec.device(), "\""),
                 "auto, cpu or cuda");
}

// What the specs can say and no backend runs yet.
absl::Status RefuseWhatDoesNotRun(const TrainConfig& config) {
  if (config.precision().reduce() == FP16) {
    return absl::InvalidArgumentError(
        "precision.reduce is FP16, whose range gradients may leave; use FP32 "
        "or "
        "BF16");
  }
  if (config.precision().moments() == FP16) {
    return absl::InvalidArgumentError(
        "precision.moments is FP16, whose range squares of gradients leave; "
        "use "
        "FP32 or BF16");
  }
  if (config.run().has_deterministic() && !config.run().deterministic() &&
      config.run().device() == "cpu") {
    return absl::InvalidArgumentError(
        "run.deterministic is false and run.device is \"cpu\"; a CPU always is "
        "deterministic: leave it out or true");
  }
  return absl::OkStatus();
}

absl::Status ValidateTarget(const TargetSpec& target) {
  SG_RETURN_IF_ERROR(Require(target.lanes() >= 1 && target.lanes() <= 4,
                             "lanes", target.lanes(), "1 to 4"));
  SG_RETURN_IF_ERROR(Require(target.buffer_alignment() >= 0, "buffer_alignment",
                             target.buffer_alignment(), "0 (any) or more"));
  SG_RETURN_IF_ERROR(Require(target.window_alignment() >= 0, "window_alignment",
                             target.window_alignment(), "0 (any) or more"));
  std::vector<std::string> families;
  for (const OpFamily& family : OpFamilies())
    families.push_back(std::string(family.name));
  for (const auto& [family, bytes] : target.workspace_budget()) {
    const std::string field =
        absl::StrCat("workspace_budget[\"", family, "\"]");
    if (std::find(families.begin(), families.end(), family) == families.end()) {
      const std::string nearest = NearestName(family, families);
      return absl::InvalidArgumentError(absl::StrCat(
          field, " is of no op family",
          nearest.empty() ? ""
                          : absl::StrCat("; did you mean \"", nearest, "\"?"),
          "; use one of: ", absl::StrJoin(families, ", ")));
    }
    SG_RETURN_IF_ERROR(Require(bytes >= 0, field, bytes, "0 or more"));
  }
  const std::vector<std::string> fusions = FusionsByTarget();
  for (const std::string& name : target.fusions()) {
    if (std::find(fusions.begin(), fusions.end(), name) != fusions.end())
      continue;
    return absl::InvalidArgumentError(
        absl::StrCat("fusions: \"", name,
                     "\" is no fusion that a target chooses; use some "
                     "of: ",
                     absl::StrJoin(fusions, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<std::string> PresetNames(absl::string_view directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(directory), error)) {
    const std::string name = entry.path().filename().string();
    if (absl::EndsWith(name, kSuffix))
      names.emplace_back(absl::StripSuffix(name, kSuffix));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<TrainConfig> LoadTrainConfig(
    absl::string_view name_or_path, absl::string_view preset_directory,
    absl::Span<const std::string> overrides) {
  SG_ASSIGN_OR_RETURN(const auto text,
                      FindText("config", name_or_path, preset_directory));
  TrainConfig config;
  SG_RETURN_IF_ERROR(ParseTextConfig(text.second, text.first, &config));
  for (const std::string& assignment : overrides)
    SG_RETURN_IF_ERROR(ApplyOverride(assignment, &config));
  return config;
}

absl::StatusOr<TargetSpec> LoadTarget(absl::string_view name,
                                      absl::string_view target_directory) {
  SG_ASSIGN_OR_RETURN(const auto text,
                      FindText("target", name, target_directory));
  TargetSpec target;
  SG_RETURN_IF_ERROR(ParseTextConfig(text.second, text.first, &target));
  const absl::Status status = ValidateTarget(target);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat(text.first, ": ", status.message()));
  }
  return target;
}

void ResolveTrainConfig(int64_t max_positions, int world_size,
                        TrainConfig* config) {
  const auto set_default = [](auto* message, auto has, auto set, auto value) {
    if (!(message->*has)()) (message->*set)(value);
  };
  ShardSpec* shard = config->mutable_shard();
  if (shard->min_num_params() == 0) shard->set_min_num_params(100000000);
  set_default(shard, &ShardSpec::has_reshard_after_forward,
              &ShardSpec::set_reshard_after_forward,
              MayReshard(shard->strategy()));
  set_default(shard, &ShardSpec::has_prefetch, &ShardSpec::set_prefetch, 1);
  set_default(shard, &ShardSpec::has_max_units_in_flight,
              &ShardSpec::set_max_units_in_flight,
              std::min(shard->prefetch(), kMaxPrefetch) + 1);
  set_default(config->mutable_precision(), &PrecisionSpec::has_reduce,
              &PrecisionSpec::set_reduce, FP32);
  set_default(config->mutable_precision(), &PrecisionSpec::has_moments,
              &PrecisionSpec::set_moments, FP32);

  const bool fp16 = config->precision().compute() == FP16;
  if (fp16) {
    LossScaleSpec* scale = config->mutable_precision()->mutable_loss_scale();
    set_default(scale, &LossScaleSpec::has_initial, &LossScaleSpec::set_initial,
                65536);
    set_default(scale, &LossScaleSpec::has_growth_factor,
                &LossScaleSpec::set_growth_factor, 2);
    set_default(scale, &LossScaleSpec::has_backoff_factor,
                &LossScaleSpec::set_backoff_factor, 0.5);
    set_default(scale, &LossScaleSpec::has_growth_interval,
                &LossScaleSpec::set_growth_interval, 2000);
  }

  OptimizerSpec* optimizer = config->mutable_optimizer();
  set_default(optimizer, &OptimizerSpec::has_learning_rate,
              &OptimizerSpec::set_learning_rate, 3e-4);
  set_default(optimizer, &OptimizerSpec::has_beta1, &OptimizerSpec::set_beta1,
              0.9);
  set_default(optimizer, &OptimizerSpec::has_beta2, &OptimizerSpec::set_beta2,
              0.95);
  set_default(optimizer, &OptimizerSpec::has_epsilon,
              &OptimizerSpec::set_epsilon, 1e-8);
  set_default(optimizer, &OptimizerSpec::has_weight_decay,
              &OptimizerSpec::set_weight_decay, 0.1);
  set_default(optimizer, &OptimizerSpec::has_max_gradient_norm,
              &OptimizerSpec::set_max_gradient_norm, 1.0);

  DataSpec* data = config->mutable_data();
  if (data->batch_size() == 0) data->set_batch_size(8);
  for (DataSource& source : *data->mutable_sources()) {
    if (source.weight() == 0) source.set_weight(1);
  }
  if (data->sequence_length() == 0)
    data->set_sequence_length(max_positions > 0 ? max_positions : 1024);
  if (data->micro_batch_size() == 0) {
    data->set_micro_batch_size(std::max<int64_t>(
        1, data->batch_size() / std::max(1, world_size) +
               (data->batch_size() % std::max(1, world_size) > 0 ? 1 : 0)));
  }
  CheckpointSpec* checkpoint = config->mutable_checkpoint();
  set_default(checkpoint, &CheckpointSpec::has_keep_last,
              &CheckpointSpec::set_keep_last, 2);
  set_default(checkpoint, &CheckpointSpec::has_asynchronous,
              &CheckpointSpec::set_asynchronous, true);
  if (checkpoint->timeout_seconds() == 0) checkpoint->set_timeout_seconds(1800);
  if (checkpoint->stall_seconds() == 0) checkpoint->set_stall_seconds(60);

  RunSpec* run = config->mutable_run();
  if (!run->has_device()) run->set_device("auto");
  set_default(run, &RunSpec::has_capture, &RunSpec::set_capture, true);
  set_default(run, &RunSpec::has_deterministic, &RunSpec::set_deterministic,
              true);
  set_default(run, &RunSpec::has_non_finite, &RunSpec::set_non_finite,
              fp16 ? RunSpec::SKIP : RunSpec::STOP);
  if (run->log_every() == 0) run->set_log_every(1);
  if (run->timeout_seconds() == 0) run->set_timeout_seconds(100);
  if (run->startup_timeout_seconds() == 0)
    run->set_startup_timeout_seconds(300);

  ScheduleSpec* schedule = config->mutable_schedule();
  set_default(schedule, &ScheduleSpec::has_final_fraction,
              &ScheduleSpec::set_final_fraction, 0.1);
  if (schedule->decay_steps() == 0) schedule->set_decay_steps(run->steps());
  if (schedule->kind() == ScheduleSpec::WARMUP_STABLE_DECAY &&
      schedule->stable_until() == 0) {
    const int64_t steps = schedule->decay_steps();
    schedule->set_stable_until(steps / 10 * 9 + steps % 10 * 9 / 10);
  }
}

absl::Status ValidateTrainConfig(const TrainConfig& config,
                                 int64_t max_positions, int world_size) {
  SG_RETURN_IF_ERROR(Require(world_size >= 1, "the world size", world_size,
                             "1 or more ranks"));
  // Before the schedule, whose default comes from run.steps.
  SG_RETURN_IF_ERROR(ValidateRun(config.run()));
  SG_RETURN_IF_ERROR(ValidateShard(config.shard(), world_size));
  SG_RETURN_IF_ERROR(ValidateOptimizer(config.optimizer()));
  SG_RETURN_IF_ERROR(ValidateSchedule(config.schedule()));
  const LossSpec& loss = config.loss();
  SG_RETURN_IF_ERROR(
      Require(loss.label_smoothing() >= 0 && loss.label_smoothing() < 1,
              "loss.label_smoothing", loss.label_smoothing(),
              "in [0, 1), for example 0.1"));
  SG_RETURN_IF_ERROR(Require(loss.z_loss() >= 0, "loss.z_loss", loss.z_loss(),
                             "0 (none) or more, for example 1e-4"));
  SG_RETURN_IF_ERROR(ValidateData(config.data(), max_positions, world_size));
  SG_RETURN_IF_ERROR(ValidateCheckpoint(config.checkpoint()));
  SG_RETURN_IF_ERROR(Require(config.evaluation().every() >= 0,
                             "evaluation.every", config.evaluation().every(),
                             "0 or more steps"));
  SG_RETURN_IF_ERROR(
      Require(config.evaluation().sequences() >= 0, "evaluation.sequences",
              config.evaluation().sequences(), "0 (all) or more"));
  SG_RETURN_IF_ERROR(ValidateLossScale(config));
  return RefuseWhatDoesNotRun(config);
}

}  // namespace shardgraph
