#include "tools/plan/report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/model_flops.h"
#include "kernels/status_macros.h"

namespace shardgraph {

double PlanReport::TokensPerSecond() const {
  const DataSpec& data = config->data();
  return step_seconds > 0 ? static_cast<double>(data.batch_size()) *
                                data.sequence_length() / step_seconds
                          : 0;
}

double PlanReport::Utilization() const {
  const double peak =
      plan->compute == DType::kF32 ? target.fp32_flops() : target.bf16_flops();
  return peak > 0 && step_seconds > 0 ? model_flops / step_seconds / peak : 0;
}

absl::StatusOr<PlanReport> MakeReport(const std::string& config_name,
                                      const PlanRequest& request,
                                      const TrainingPlan& plan) {
  PlanReport report;
  report.config_name = config_name;
  report.config = request.config;
  report.plan = &plan;
  report.target = request.target;
  report.world_size = request.world_size;
  report.micro_batches =
      MicroBatches(request.config->data(), request.world_size);
  SG_ASSIGN_OR_RETURN(report.timelines,
                      SimulatePlan(plan.plan, CostModel(request.target)));

  const Graph& graph = plan.plan.graph;
  for (const PhaseSchedule& schedule : plan.plan.schedules) {
    report.nodes += static_cast<int64_t>(schedule.order.size());
    std::set<NodeId> recorded;
    for (const Edge& edge : schedule.edges) recorded.insert(edge.from);
    report.events += static_cast<int64_t>(recorded.size());
  }
  for (int lane = 0; lane < plan.plan.num_lanes; ++lane)
    report.lanes.push_back({LaneName(lane, plan.plan.num_lanes)});
  report.step = StepPhasesOf(graph, report.micro_batches);
  for (const auto& [phase, runs] : report.step) {
    const PhaseTimeline& timeline = report.timelines[phase];
    report.step_seconds += runs * timeline.seconds;
    for (const NodeTime& node : timeline.nodes) {
      LaneUse& lane = report.lanes[node.lane];
      ++lane.nodes;
      lane.busy_seconds += runs * (node.end - node.begin);
    }
    const CommunicationVolume volume = VolumeOf(plan.plan, phase);
    report.communication.all_gather_bytes += runs * volume.all_gather_bytes;
    report.communication.reduce_scatter_bytes +=
        runs * volume.reduce_scatter_bytes;
    report.communication.all_reduce_bytes += runs * volume.all_reduce_bytes;
    report.communication.all_to_all_bytes += runs * volume.all_to_all_bytes;
    for (double flops : MatmulFlopsOf(plan.plan, phase))
      report.executed_flops += runs * flops;
    report.model_flops += runs * ModelFlopsOf(graph, phase);
  }
  if (report.step_seconds > 0) {
    for (LaneUse& lane : report.lanes)  // sums of the same times may differ
      lane.idle_share =
          std::max(0.0, 1 - lane.busy_seconds / report.step_seconds);
  }
  return report;
}

std::string PrintStrategy(const ShardSpec& shard) {
  std::string text = ShardStrategy_Name(shard.strategy());
  if (shard.strategy() == HYBRID)
    absl::StrAppend(&text, " in groups of ", shard.shard_group_size());
  if (shard.reshard_group_size() != 0)
    absl::StrAppend(&text, " resharded to groups of ",
                    shard.reshard_group_size());
  return text;
}

std::string PrintBytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1023.5 && unit < 4) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f B", bytes);
  const int digits = bytes < 9.995 ? 2 : bytes < 99.95 ? 1 : 0;
  return absl::StrFormat("%.*f %s", digits, bytes, kUnits[unit]);
}

std::string PrintCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  for (int at = static_cast<int>(digits.size()) - 3; at > (count < 0 ? 1 : 0);
       at -= 3) {
    digits.insert(at, ",");
  }
  return digits;
}

std::string PrintSeconds(double seconds) {
  if (seconds >= 600)
    return absl::StrFormat("%.0f min %02.0f s", std::floor(seconds / 60),
                           std::floor(std::fmod(seconds, 60)));
  if (seconds >= 1 || seconds == 0) return absl::StrFormat("%.3g s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g us", seconds * 1e6);
}

}  // namespace shardgraph
