#include "tools/plan/plan.h"

#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fsdp/config/train_config.h"
#include "fsdp/train/recompute_choice.h"
#include "fsdp/train/training_plan.h"
#include "kernels/status_macros.h"
#include "tools/plan/cost_model.h"
#include "tools/plan/fit.h"
#include "tools/plan/report.h"
#include "tools/plan/step_time.h"
#include "tools/plan/target_workspace.h"
#include "tools/presets/presets.h"
#include "tools/program/flags.h"

namespace shardgraph {

absl::StatusOr<PlanFlags> ParsePlanFlags(const std::vector<std::string>& args) {
  PlanFlags flags;
  int64_t world_size = 1;
  std::string format = "text";
  SG_RETURN_IF_ERROR(
      ParseFlags("plan: the step plan of a training, without running it.\n"
                 "  plan --config=NAME_OR_PATH [flags] [field.path=value ...]",
                 args,
                 {{"config", &flags.config,
                   "a preset (quickstart, llama3_8b, ...) or a config file"},
                  {"world_size", &world_size, "ranks, 1 or more; 1"},
                  {"target", &flags.target,
                   "a preset of proto/targets or a file; this machine's"},
                  {"format", &format, "text, json or svg"}},
                 &flags.overrides));
  if (world_size < 1 || world_size > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--world_size is ", world_size, "; it must be 1 or more ranks"));
  }
  flags.world_size = static_cast<int>(world_size);
  if (format == "text") {
    flags.format = PlanFlags::Format::kText;
  } else if (format == "json") {
    flags.format = PlanFlags::Format::kJson;
  } else if (format == "svg") {
    flags.format = PlanFlags::Format::kSvg;
  } else {
    return absl::InvalidArgumentError(absl::StrCat(
        "--format is \"", format, "\"; it must be text, json or svg"));
  }
  if (flags.config.empty()) {
    return absl::InvalidArgumentError(
        "--config is missing; give a preset or the path of a file");
  }
  return flags;
}

absl::StatusOr<std::string> RunPlan(const PlanFlags& flags) {
  SG_ASSIGN_OR_RETURN(TrainConfig config,
                      LoadConfig(flags.config, flags.overrides));
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                      MakeModel(config.model()));
  ResolveTrainConfig(model->max_positions(), flags.world_size, &config);
  SG_RETURN_IF_ERROR(
      ValidateTrainConfig(config, model->max_positions(), flags.world_size));

  PlanRequest request;
  request.config = &config;
  request.world_size = flags.world_size;
  SG_ASSIGN_OR_RETURN(
      request.target,
      LoadTargetPreset(flags.target.empty() ? config.run().target()
                                            : flags.target));
  request.workspace = TargetWorkspace(request.target);
  std::optional<RecomputeChoice> recompute;
  if (config.shard().recompute() == AUTO) {
    const auto seconds = [&](const TrainingPlan& plan) {
      return SecondsOfStep(plan, MicroBatches(config.data(), flags.world_size),
                           CostModel(request.target));
    };
    SG_ASSIGN_OR_RETURN(
        recompute,
        ChooseRecompute(request, seconds,
                        absl::StrCat("the target ", request.target.name())));
    ApplyRecompute(*recompute, &config);
  }
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingPlan> plan,
                      MakeTrainingPlan(request));
  absl::string_view name = flags.config;
  name = name.substr(name.rfind('/') + 1);
  SG_ASSIGN_OR_RETURN(
      PlanReport report,
      MakeReport(std::string(absl::StripSuffix(name, ".textproto")), request,
                 *plan));
  report.recompute = std::move(recompute);
  const int64_t limit = request.target.memory_bytes();
  if (limit > 0 && plan->plan.memory.arena_bytes > limit) {
    report.missing_bytes = plan->plan.memory.arena_bytes - limit;
    if (flags.format != PlanFlags::Format::kSvg)
      report.fitting = SettingsThatFit(request);
  }
  switch (flags.format) {
    case PlanFlags::Format::kJson:
      return JsonReport(report);
    case PlanFlags::Format::kSvg:
      return SvgReport(report);
    default:
      return TextReport(report);
  }
}

}  // namespace shardgraph
