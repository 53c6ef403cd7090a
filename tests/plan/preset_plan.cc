#include "tests/plan/preset_plan.h"

#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "kernels/status_macros.h"
#include "tools/plan/target_workspace.h"
#include "tools/presets/presets.h"

namespace shardgraph {
namespace {

std::unique_ptr<PresetPlan> Plan(std::unique_ptr<PresetPlan> result,
                                 int world_size, const TargetSpec& target) {
  const auto model = MakeModel(result->config.model());
  SG_CHECK_OK(model);
  ResolveTrainConfig((*model)->max_positions(), world_size, &result->config);
  result->request.config = &result->config;
  result->request.world_size = world_size;
  result->request.target = target;
  result->request.workspace = TargetWorkspace(target);
  auto plan = MakeTrainingPlan(result->request);
  SG_CHECK_OK(plan);
  result->training = *std::move(plan);
  return result;
}

}  // namespace

std::unique_ptr<PresetPlan> PlanPreset(
    const std::string& name, int world_size, const std::string& target,
    const std::vector<std::string>& overrides) {
  auto result = std::make_unique<PresetPlan>();
  const auto config = LoadConfig(name, overrides);
  SG_CHECK_OK(config);
  result->config = *config;
  const auto spec = LoadTargetPreset(target);
  SG_CHECK_OK(spec);
  return Plan(std::move(result), world_size, *spec);
}

std::unique_ptr<PresetPlan> PlanText(const std::string& config, int world_size,
                                     const TargetSpec& target, bool generate) {
  auto result = std::make_unique<PresetPlan>();
  SG_CHECK_OK(ParseTextConfig(config, "test", &result->config));
  result->request.generate = generate;
  result->request.generate_shape = {
      .batch = 1, .prefill_length = 4, .cache_length = 8};
  return Plan(std::move(result), world_size, target);
}

TargetSpec TestTarget(int lanes) {
  TargetSpec target;
  target.set_name("test");
  target.set_lanes(lanes);
  target.set_buffer_alignment(256);
  target.set_window_alignment(4096);
  return target;
}

}  // namespace shardgraph
