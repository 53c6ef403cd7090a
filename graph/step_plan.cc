#include "graph/step_plan.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

absl::string_view EdgeKindName(EdgeKind kind) {
  constexpr std::array<absl::string_view, 3> kNames = {"data", "throttle",
                                                       "prefetch"};
  return kNames[static_cast<int>(kind)];
}

// Bytes of all elements, gaps of strides left out.
int64_t BytesOf(const Graph& graph, ValueId id) {
  const TensorType& type = graph.values[id].type;
  return type.num_elements() * SizeOf(type.dtype);
}

}  // namespace

int64_t CollectiveBytes(const Graph& graph, const Node& node) {
  const Group* group = graph.FindGroup(node.attributes.String(kGroupAttribute));
  if (group == nullptr || node.operands.empty() || node.results.empty())
    return 0;
  // A shard of S / n bytes moves n - 1 times.
  const int64_t others = group->size - 1;
  const int64_t operand = BytesOf(graph, node.operands[0]);
  if (node.op->name == "all_gather") return operand * others;
  if (node.op->name == "reduce_scatter")
    return BytesOf(graph, node.results[0]) * others;
  if (node.op->name == "all_reduce") return 2 * operand * others / group->size;
  if (node.op->name == "all_to_all") return operand / group->size * others;
  return 0;
}

CommunicationVolume VolumeOf(const StepPlan& plan, PhaseId phase) {
  CommunicationVolume volume;
  for (NodeId id : plan.graph.phases[phase].nodes) {
    const Node& node = plan.graph.nodes[id];
    const int64_t bytes = CollectiveBytes(plan.graph, node);
    if (node.op->name == "all_gather") volume.all_gather_bytes += bytes;
    if (node.op->name == "reduce_scatter") volume.reduce_scatter_bytes += bytes;
    if (node.op->name == "all_reduce") volume.all_reduce_bytes += bytes;
    if (node.op->name == "all_to_all") volume.all_to_all_bytes += bytes;
  }
  return volume;
}

std::array<double, 4> MatmulFlopsOf(const StepPlan& plan, PhaseId phase) {
  std::array<double, 4> flops = {};
  const Graph& graph = plan.graph;
  for (NodeId id : graph.phases[phase].nodes) {
    const Node& node = graph.nodes[id];
    if (node.op->cost == nullptr) continue;
    flops[static_cast<int>(node.direction)] +=
        CostOf(*node.op, node.attributes, graph.OperandTypes(node),
               graph.ResultTypes(node))
            .matmul_flops;
  }
  return flops;
}

std::string PrintPlan(const StepPlan& plan) {
  const Graph& graph = plan.graph;
  const MemoryPlan& memory = plan.memory;
  std::string text = absl::StrCat(
      "plan target=", plan.target, " lanes=", plan.num_lanes,
      " arena=", memory.arena_bytes, " persistent=", memory.persistent_bytes,
      " transient=", memory.transient_bytes, "\n", PrintGraph(graph));
  for (size_t i = 0; i < memory.offsets.size(); ++i) {
    if (memory.offsets[i] == kNone) continue;
    absl::StrAppend(&text, "place ", i, " ", graph.buffers[i].name, " at ",
                    memory.offsets[i], "\n");
  }
  std::vector<int32_t> position(graph.nodes.size(), kNone);
  for (const PhaseSchedule& schedule : plan.schedules) {
    absl::StrAppend(&text, "schedule ", graph.phases[schedule.phase].name,
                    "\n");
    for (size_t p = 0; p < schedule.order.size(); ++p)
      position[schedule.order[p]] = static_cast<int32_t>(p);
    size_t edge = 0;
    for (size_t p = 0; p < schedule.order.size(); ++p) {
      const NodeId id = schedule.order[p];
      absl::StrAppend(&text, "  ", p, " lane ", schedule.lanes[p], ": ",
                      PrintNode(graph, id));
      for (; edge < schedule.edges.size() && schedule.edges[edge].to == id;
           ++edge) {
        absl::StrAppend(&text, " after ", position[schedule.edges[edge].from],
                        " (", EdgeKindName(schedule.edges[edge].kind), ")");
      }
      absl::StrAppend(&text, "\n");
    }
    SG_CHECK_EQ(edge, schedule.edges.size()) << "edges are not sorted";
  }
  return text;
}

std::string HashPlan(const StepPlan& plan) {
  return absl::StrCat(absl::Hex(HashName(PrintPlan(plan)), absl::kZeroPad16));
}

}  // namespace shardgraph
