#include "tools/plan/plan.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "fsdp/train/training_plan.h"
#include "kernels/status_macros.h"
#include "tools/plan/fit.h"
#include "tools/plan/report.h"
#include "tools/plan/target_workspace.h"
#include "tools/presets/presets.h"

namespace shardgraph {

std::string PlanUsage() {
  return "plan: the step plan of a training, without running it\n"
         "  --config=NAME|PATH            a preset of proto/configs or a file\n"
         "  --world_size=N                ranks; 1 if absent\n"
         "  --target=NAME|PATH            a preset of proto/targets or a file; "
         "this machine's if absent\n"
         "  --format=text|json|svg        text if absent\n"
         "  field.path=value ...          overrides of the config, for example "
         "shard.recompute=FULL\n";
}

absl::StatusOr<PlanFlags> ParsePlanFlags(const std::vector<std::string>& args) {
  PlanFlags flags;
  for (const std::string& arg : args) {
    if (!absl::StartsWith(arg, "-")) {
      flags.overrides.push_back(arg);
      continue;
    }
    const size_t equals = arg.find('=');
    const std::string name = arg.substr(0, equals);
    const std::string value =
        equals == std::string::npos ? "" : arg.substr(equals + 1);
    const std::vector<std::string> names = {"--config", "--world_size",
                                            "--target", "--format", "--help"};
    if (name == "--help") {
      flags.help = true;
      return flags;
    }
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string nearest = NearestName(name, names);
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown flag ", name,
          nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
          "\n", PlanUsage()));
    }
    if (value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " has no value; write ", name, "=VALUE"));
    }
    if (name == "--config") {
      flags.config = value;
    } else if (name == "--target") {
      flags.target = value;
    } else if (name == "--world_size") {
      if (!absl::SimpleAtoi(value, &flags.world_size) || flags.world_size < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("--world_size is \"", value,
                         "\"; it must be a number of ranks, 1 or more"));
      }
    } else if (value == "text") {
      flags.format = PlanFlags::Format::kText;
    } else if (value == "json") {
      flags.format = PlanFlags::Format::kJson;
    } else if (value == "svg") {
      flags.format = PlanFlags::Format::kSvg;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(
          "--format is \"", value, "\"; it must be text, json or svg"));
    }
  }
  if (flags.config.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--config is missing; give a preset or the path of a file\n",
        PlanUsage()));
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
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<TrainingPlan> plan,
                      MakeTrainingPlan(request));
  absl::string_view name = flags.config;
  name = name.substr(name.rfind('/') + 1);
  SG_ASSIGN_OR_RETURN(
      PlanReport report,
      MakeReport(std::string(absl::StripSuffix(name, ".textproto")), request,
                 *plan));
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
