// The JSON of a plan: names that scripts rely on.
#include "nlohmann/json.hpp"

#include "tools/plan/attention_kernels.h"
#include "tools/plan/report.h"

namespace shardgraph {
namespace {

using Json = nlohmann::ordered_json;

Json Units(const PlanReport& report) {
  Json units = Json::array();
  for (const ShardUnit& unit : report.plan->layout.units()) {
    Json parameters = Json::array();
    for (const FlatMember& member : unit.flat.members) {
      Json shape = Json::array();
      for (int64_t size : member.parameter->shape) shape.push_back(size);
      parameters.push_back({{"name", member.parameter->name},
                            {"shape", std::move(shape)},
                            {"offset", member.offset},
                            {"numel", member.parameter->numel()}});
    }
    units.push_back({{"name", unit.name},
                     {"trainable", unit.trainable},
                     {"numel", unit.flat.numel},
                     {"padded_numel", unit.flat.padded_numel},
                     {"shard_numel", unit.flat.shard_numel},
                     {"parameters", std::move(parameters)}});
  }
  return units;
}

// peak_bytes and lower_bound_bytes are of what lives within a phase:
// arena_bytes = persistent_bytes + peak_bytes. snapshot_bytes: host memory
// beside the arena.
Json Memory(const PlanReport& report) {
  const MemoryPlan& memory = report.plan->plan.memory;
  Json by_kind = Json::object();
  for (int kind = 0; kind < kNumMemoryKinds; ++kind)
    by_kind[std::string(MemoryKindName(static_cast<MemoryKind>(kind)))] =
        memory.bytes_by_kind[kind];
  return {{"arena_bytes", memory.arena_bytes},
          {"persistent_bytes", memory.persistent_bytes},
          {"peak_bytes", memory.transient_bytes},
          {"lower_bound_bytes", memory.transient_lower_bound},
          {"snapshot_bytes", report.plan->snapshot_bytes},
          {"by_kind", std::move(by_kind)}};
}

Json Time(const PlanReport& report) {
  Json lanes = Json::array();
  for (const LaneUse& lane : report.lanes) {
    lanes.push_back({{"name", lane.name},
                     {"busy_seconds", lane.busy_seconds},
                     {"idle_share", lane.idle_share}});
  }
  return {{"step_seconds", report.step_seconds},
          {"tokens_per_second", report.TokensPerSecond()},
          {"mfu", report.Utilization()},
          {"lanes", std::move(lanes)}};
}

Json Phases(const PlanReport& report) {
  Json phases = Json::array();
  for (const StepPhase& phase : report.step) {
    const PhaseSchedule& schedule = report.plan->plan.schedules[phase.phase];
    phases.push_back(
        {{"name", report.plan->plan.graph.phases[phase.phase].name},
         {"runs", phase.runs},
         {"nodes", schedule.order.size()},
         {"edges", schedule.edges.size()},
         {"seconds", report.timelines[phase.phase].seconds}});
  }
  return phases;
}

Json Attention(const PlanReport& report) {
  Json all = Json::array();
  for (const AttentionKernels& kernels :
       AttentionKernelsOf(report.plan->plan.graph, report.target)) {
    all.push_back({{"op", kernels.op},
                   {"nodes", kernels.nodes},
                   {"cudnn", kernels.own_kernel_reason.empty()},
                   {"own_kernel_reason", kernels.own_kernel_reason}});
  }
  return all;
}

Json Chosen(const RecomputeChoice& choice) {
  const auto figures = [](const RecomputeChoice::Figures& of) {
    return Json{{"what", of.what()},
                {"arena_bytes", of.arena_bytes()},
                {"step_seconds", of.step_seconds()}};
  };
  Json units = Json::array();
  for (const RecomputeUnits& unit : choice.units()) {
    Json ops = Json::array();
    for (const std::string& op : unit.recompute_ops()) ops.push_back(op);
    units.push_back({{"pattern", unit.pattern()},
                     {"recompute", Recompute_Name(unit.recompute())},
                     {"recompute_ops", std::move(ops)}});
  }
  Json json = {{"budget_bytes", choice.budget_bytes()},
               {"times", choice.times()},
               {"units", std::move(units)},
               {"chosen", figures(choice.chosen())},
               {"none", figures(choice.none())},
               {"full", figures(choice.full())}};
  if (choice.has_runner_up()) json["runner_up"] = figures(choice.runner_up());
  return json;
}

}  // namespace

std::string JsonReport(const PlanReport& report) {
  const CommunicationVolume& volume = report.communication;
  Json json = {{"units", Units(report)},
               {"memory", Memory(report)},
               {"communication",
                {{"all_gather_bytes", volume.all_gather_bytes},
                 {"reduce_scatter_bytes", volume.reduce_scatter_bytes},
                 {"all_reduce_bytes", volume.all_reduce_bytes},
                 {"all_to_all_bytes", volume.all_to_all_bytes}}},
               {"nodes", report.nodes},
               {"events", report.events},
               {"flops", report.model_flops},
               {"executed_flops", report.executed_flops},
               {"hash", report.plan->plan.hash},
               {"target", report.target.name()},
               {"world_size", report.world_size},
               {"micro_batches", report.micro_batches},
               {"phases", Phases(report)},
               {"attention", Attention(report)},
               {"time", Time(report)}};
  if (report.recompute.has_value())
    json["recompute"] = Chosen(*report.recompute);
  if (report.target.memory_bytes() > 0) {
    Json fitting = Json::array();
    for (const FittingSetting& setting : report.fitting) {
      fitting.push_back({{"settings", setting.settings},
                         {"arena_bytes", setting.arena_bytes}});
    }
    json["fit"] = {{"memory_bytes", report.target.memory_bytes()},
                   {"missing_bytes", report.missing_bytes},
                   {"settings", std::move(fitting)}};
  }
  return json.dump(2) + "\n";
}

}  // namespace shardgraph
