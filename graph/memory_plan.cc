// PlanMemory: the persistent buffers one after another, then the phase-lifetime
// ones packed by their lifetimes.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/lifetimes.h"
#include "graph/passes.h"
#include "graph/placement.h"

namespace shardgraph {
namespace {

int64_t RoundUp(int64_t bytes, int64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(
    const Graph& graph, const std::vector<PhaseSchedule>& schedules) {
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.alignment < 1 || buffer.bytes < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "buffer ", buffer.name, " has ", buffer.bytes,
          " bytes and alignment ", buffer.alignment,
          "; bytes must be at least 0 and the alignment at least 1"));
    }
  }
  MemoryPlan plan;
  plan.offsets.assign(graph.buffers.size(), kNone);

  // Coarse alignments first: no gaps but at the changes.
  std::vector<BufferId> persistent;
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    if (graph.buffers[i].lifetime != Lifetime::kPhase)
      persistent.push_back(static_cast<BufferId>(i));
  }
  std::stable_sort(
      persistent.begin(), persistent.end(), [&](BufferId a, BufferId b) {
        return graph.buffers[a].alignment > graph.buffers[b].alignment;
      });
  for (BufferId id : persistent) {
    const Buffer& buffer = graph.buffers[id];
    plan.offsets[id] = RoundUp(plan.persistent_bytes, buffer.alignment);
    plan.persistent_bytes = plan.offsets[id] + buffer.bytes;
    plan.bytes_by_kind[static_cast<int>(buffer.kind)] += buffer.bytes;
  }

  const Lifetimes lifetimes = LifetimesOf(graph, schedules);
  std::vector<PlacementItem> items(lifetimes.buffers.size());
  int64_t alignment = 1;
  for (size_t i = 0; i < items.size(); ++i) {
    const Buffer& buffer = graph.buffers[lifetimes.buffers[i]];
    items[i] = {buffer.bytes, buffer.alignment, lifetimes.uses[i]};
    alignment = std::max(alignment, buffer.alignment);
  }
  const PlacementResult placement = Place(items, lifetimes.aligned_lower_bound);
  plan.persistent_bytes = RoundUp(plan.persistent_bytes, alignment);
  for (size_t i = 0; i < items.size(); ++i) {
    plan.offsets[lifetimes.buffers[i]] =
        plan.persistent_bytes + placement.offsets[i];
  }
  plan.transient_bytes = placement.bytes;
  plan.arena_bytes = plan.persistent_bytes + plan.transient_bytes;

  plan.transient_lower_bound = lifetimes.lower_bound;
  plan.peak_phase = lifetimes.peak_phase;
  plan.peak_node = lifetimes.peak_node;
  plan.live_at_peak = lifetimes.live_at_peak;
  for (BufferId id : plan.live_at_peak) {
    const Buffer& buffer = graph.buffers[id];
    plan.bytes_by_kind[static_cast<int>(buffer.kind)] += buffer.bytes;
  }
  return plan;
}

}  // namespace shardgraph
