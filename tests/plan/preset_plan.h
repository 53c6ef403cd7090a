// Plans of presets and of configs written in a test.
#ifndef TESTS_PLAN_PRESET_PLAN_H_
#define TESTS_PLAN_PRESET_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "fsdp/train/training_plan.h"

namespace shardgraph {

struct PresetPlan {
  TrainConfig config;   // resolved
  PlanRequest request;  // refers to config
  std::unique_ptr<TrainingPlan> training;

  const StepPlan& plan() const { return training->plan; }
  const Graph& graph() const { return training->plan.graph; }
};

// The preset `name` with overrides over `world_size` ranks, for the target
// preset `target`. Ends the program when there is no plan.
std::unique_ptr<PresetPlan> PlanPreset(
    const std::string& name, int world_size, const std::string& target,
    const std::vector<std::string>& overrides = {});

// The same from text; not validated as a config that is to run, so that it may
// say more than runs. `generate` adds the phases prefill and decode.
std::unique_ptr<PresetPlan> PlanText(const std::string& config, int world_size,
                                     const TargetSpec& target,
                                     bool generate = false);

// Lanes and alignments, no more: "test".
TargetSpec TestTarget(int lanes);

}  // namespace shardgraph

#endif  // TESTS_PLAN_PRESET_PLAN_H_
