#include "fsdp/train/training_plan.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/files/durable_file.h"
#include "graph/fusion.h"
#include "kernels/internal_error.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status CheckUnfused(const std::vector<std::string>& unfused) {
  std::vector<std::string> known = {std::string(kAllFusions)};
  for (const FusionPattern& pattern : FusionPatterns())
    known.push_back(std::string(pattern.name));
  for (const std::string& name : unfused) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("run.unfused: there is no fusion pattern \"", name,
                       "\"; give names of ", absl::StrJoin(known, ", ")));
    }
  }
  return absl::OkStatus();
}

// From the graph of the steps to their plan.
absl::Status Passes(const PlanRequest& request,
                    const std::vector<std::string>& unfused, Graph graph,
                    StepPlan* plan) {
  SG_RETURN_IF_ERROR(Lower(graph, request.target, request.workspace, unfused));
  ScheduleOptions options;
  const ShardSpec& shard = request.config->shard();
  options.prefetch = shard.prefetch();
  options.max_units_in_flight = shard.max_units_in_flight();
  SG_ASSIGN_OR_RETURN(plan->schedules,
                      Schedule(graph, request.target, options));
  SG_ASSIGN_OR_RETURN(plan->memory, PlanMemory(graph, plan->schedules));
  plan->graph = std::move(graph);
  plan->target = request.target.name();
  plan->num_lanes = request.target.lanes();
  if (request.verify) SG_RETURN_IF_ERROR(Verify(*plan));
  plan->hash = HashPlan(*plan);
  return absl::OkStatus();
}

}  // namespace

StepState FreshState(const TrainConfig& config) {
  StepState state;
  if (config.precision().compute() == FP16) {
    state.loss_scale =
        static_cast<float>(config.precision().loss_scale().initial());
  }
  return state;
}

int64_t MicroBatches(const DataSpec& data, int world_size) {
  const int64_t run = world_size * data.micro_batch_size();
  return (data.batch_size() + run - 1) / run;
}

int64_t TrainingPlan::SnapshotBytes() const {
  int64_t elements = 0;
  size_t dims = 1;
  for (size_t u = 0; u < units.size(); ++u) {
    const FlatParameter& flat = layout.units()[u].flat;
    const int64_t kinds =
        1 + (units[u].exp_avg != kNone) + (units[u].exp_avg_sq != kNone);
    elements += kinds * flat.shard_numel;
    for (const FlatMember& member : flat.members)
      dims = std::max(dims, member.parameter->shape.size());
  }
  // A range of a tensor is at most 2 * dims - 1 boxes, each in a file of its
  // own, whose data begin on a page.
  return elements * SizeOf(DType::kF32) +
         (2 * static_cast<int64_t>(dims) - 1) * DurableFile::kPage;
}

absl::StatusOr<std::unique_ptr<TrainingPlan>> MakeTrainingPlan(
    const PlanRequest& request) {
  const TrainConfig& config = *request.config;
  auto result = std::make_unique<TrainingPlan>();
  SG_ASSIGN_OR_RETURN(result->model, MakeModel(config.model()));
  SG_ASSIGN_OR_RETURN(result->groups,
                      GroupsOf(config.shard(), request.world_size));
  SG_ASSIGN_OR_RETURN(
      result->parameter_groups,
      ParameterGroups::Create(*result->model, config.optimizer()));
  SG_ASSIGN_OR_RETURN(
      result->layout,
      MakeLayout(*result->model, config.shard(), result->groups.shard,
                 result->parameter_groups,
                 PiecesOf(result->groups, config.precision().reduce())));

  StepRequest step;
  step.model = result->model.get();
  step.layout = &result->layout;
  step.groups = result->groups;
  step.parameter_groups = &result->parameter_groups;
  step.config = &config;
  step.train = request.train;
  step.evaluate = request.evaluate;
  step.generate = request.generate;
  step.generate_shape = request.generate_shape;
  SG_ASSIGN_OR_RETURN(StepGraph graph, BuildStep(step));
  result->units = std::move(graph.units);
  result->compute = graph.compute;
  result->moments = graph.moments;
  result->state = graph.state;

  if (config.run().has_deterministic() && !config.run().deterministic()) {
    for (Node& node : graph.graph.nodes) {
      if (node.op->name == "attention_gradient")
        node.attributes.SetInt("fast", 1);
    }
  }
  const std::vector<std::string> unfused(config.run().unfused().begin(),
                                         config.run().unfused().end());
  SG_RETURN_IF_ERROR(CheckUnfused(unfused));
  // The config was checked: what the passes refuse is our fault.
  SG_RETURN_IF_ERROR(AsInternal(
      Passes(request, unfused, std::move(graph.graph), &result->plan)));
  if (request.train && config.checkpoint().asynchronous())
    result->snapshot_bytes = result->SnapshotBytes();
  return result;
}

}  // namespace shardgraph
