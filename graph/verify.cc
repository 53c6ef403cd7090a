// Verify: form first (schedules, memory, nodes, collectives), then each phase
// byte by byte (verify_phase.h), then padding (verify_padding.h) and sums over
// ranks (verify_reductions.h).
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/byte_map.h"
#include "graph/passes.h"
#include "graph/verify_padding.h"
#include "graph/verify_phase.h"
#include "graph/verify_reductions.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

template <typename... Args>
absl::Status Broken(const Args&... args) {
  return absl::FailedPreconditionError(absl::StrCat(args...));
}

std::string NodeText(const Graph& graph, NodeId id) {
  return absl::StrCat("\"", PrintNode(graph, id), "\"");
}

absl::Status VerifySchedule(const StepPlan& plan, PhaseId id) {
  const Graph& graph = plan.graph;
  const Phase& phase = graph.phases[id];
  const PhaseSchedule& schedule = plan.schedules[id];
  const std::string where = absl::StrCat("phase ", phase.name, ": ");
  if (schedule.phase != id)
    return Broken(where, "its schedule is that of phase ", schedule.phase);
  if (schedule.order.size() != phase.nodes.size() ||
      schedule.lanes.size() != schedule.order.size()) {
    return Broken(where, "has ", phase.nodes.size(), " nodes, its order ",
                  schedule.order.size(), ", its lanes ", schedule.lanes.size());
  }
  std::vector<int32_t> position(graph.nodes.size(), kNone);
  for (size_t p = 0; p < schedule.order.size(); ++p) {
    const NodeId node = schedule.order[p];
    if (node < 0 || node >= static_cast<NodeId>(graph.nodes.size()))
      return Broken(where, "node ", node, " does not exist");
    if (position[node] != kNone)
      return Broken(where, NodeText(graph, node), " is ordered twice");
    position[node] = static_cast<int32_t>(p);
    if (schedule.lanes[p] < 0 || schedule.lanes[p] >= plan.num_lanes) {
      return Broken(where, NodeText(graph, node), " is on lane ",
                    schedule.lanes[p], " of ", plan.num_lanes);
    }
  }
  std::map<LaneKind, NodeId> last;
  for (NodeId node : phase.nodes) {
    if (position[node] == kNone)
      return Broken(where, NodeText(graph, node), " is not ordered");
    // Prefetching moves gathers against the others, never against each other;
    // so every collective has one place among those of its kind.
    const auto [it, first] = last.emplace(graph.nodes[node].lane, node);
    if (!first && position[it->second] > position[node]) {
      return Broken(where, NodeText(graph, node), " is ordered before ",
                    NodeText(graph, it->second),
                    ", which comes first in the program on its lane");
    }
    it->second = node;
  }
  std::pair<int32_t, int32_t> previous = {kNone, kNone};
  for (const Edge& edge : schedule.edges) {
    const NodeId count = static_cast<NodeId>(graph.nodes.size());
    if (edge.from < 0 || edge.from >= count || edge.to < 0 ||
        edge.to >= count || position[edge.from] == kNone ||
        position[edge.to] == kNone) {
      return Broken(where, "edge ", edge.from, " -> ", edge.to,
                    " leaves the phase");
    }
    const std::string text =
        absl::StrCat("edge from ", NodeText(graph, edge.from), " to ",
                     NodeText(graph, edge.to));
    const std::pair<int32_t, int32_t> key = {position[edge.to],
                                             position[edge.from]};
    if (key.second >= key.first) {
      return Broken(where, text,
                    " leads backwards in the total order: ranks would wait for "
                    "each other for ever");
    }
    if (schedule.lanes[key.first] == schedule.lanes[key.second])
      return Broken(where, text, " is within one lane");
    if (key <= previous) return Broken(where, text, " is not in sorted place");
    previous = key;
  }
  return absl::OkStatus();
}

absl::Status VerifyMemory(const StepPlan& plan) {
  const Graph& graph = plan.graph;
  const MemoryPlan& memory = plan.memory;
  if (memory.offsets.size() != graph.buffers.size()) {
    return Broken("memory plan: ", memory.offsets.size(), " offsets for ",
                  graph.buffers.size(), " buffers");
  }
  if (memory.persistent_bytes < 0 || memory.transient_bytes < 0 ||
      memory.persistent_bytes + memory.transient_bytes != memory.arena_bytes) {
    return Broken("memory plan: ", memory.persistent_bytes, " persistent and ",
                  memory.transient_bytes, " transient bytes do not make an ",
                  "arena of ", memory.arena_bytes);
  }
  std::vector<std::pair<int64_t, BufferId>> persistent;
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    const int64_t offset = memory.offsets[i];
    const bool transient = buffer.lifetime == Lifetime::kPhase;
    if (offset == kNone && transient) continue;
    const int64_t begin = transient ? memory.persistent_bytes : 0;
    const int64_t end =
        transient ? memory.arena_bytes : memory.persistent_bytes;
    if (buffer.alignment < 1 || offset < begin || buffer.bytes < 0 ||
        offset > end - buffer.bytes || offset % buffer.alignment != 0) {
      return Broken("buffer ", buffer.name, " of ", buffer.bytes,
                    " bytes, aligned to ", buffer.alignment, ", is placed at ",
                    offset, "; its part of the arena is [", begin, ", ", end,
                    ")");
    }
    if (!transient && buffer.bytes > 0)
      persistent.push_back({offset, static_cast<BufferId>(i)});
  }
  std::sort(persistent.begin(), persistent.end());
  for (size_t i = 1; i < persistent.size(); ++i) {
    const auto& [begin, id] = persistent[i - 1];
    if (begin + graph.buffers[id].bytes > persistent[i].first) {
      return Broken("buffers ", graph.buffers[id].name, " and ",
                    graph.buffers[persistent[i].second].name,
                    " are persistent and share the arena at ",
                    persistent[i].first);
    }
  }
  return absl::OkStatus();
}

absl::Status VerifyCollective(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  if (!node.attributes.Has(kGroupAttribute) ||
      node.attributes.Has("segments")) {
    return absl::OkStatus();
  }
  const std::string name = node.attributes.String(kGroupAttribute);
  const Group* group = graph.FindGroup(name);
  if (group == nullptr) {
    return Broken(NodeText(graph, id), ": there is no group \"", name, "\"");
  }
  if (group->size < 1 || group->stride < 1) {
    return Broken("group ", name, " has size ", group->size, " and stride ",
                  group->stride);
  }
  if (!node.attributes.Has("size") || node.operands.empty() ||
      node.results.empty()) {
    return absl::OkStatus();
  }
  const int64_t size = node.attributes.Int("size");
  if (size != group->size) {
    return Broken(NodeText(graph, id), ": group \"", name, "\" has ",
                  group->size, " ranks, not ", size);
  }
  const TensorType& operand = graph.values[node.operands[0]].type;
  const TensorType& result = graph.values[node.results[0]].type;
  const int64_t from = operand.num_elements();
  const int64_t to = result.num_elements();
  const bool counts_fit =
      node.op->name == "all_gather" ? to == from * size
      : node.op->name == "reduce_scatter" || node.op->name == "take_shard"
          ? from == to * size
      : node.op->name == "all_to_all" ? from == to && from % size == 0
                                      : from == to;
  if (!counts_fit || operand.dtype != result.dtype) {
    return Broken(NodeText(graph, id), ": ", operand.ToString(), " over ", size,
                  " ranks does not give ", result.ToString());
  }
  return absl::OkStatus();
}

absl::Status VerifyNode(const StepPlan& plan, NodeId id) {
  const Graph& graph = plan.graph;
  const Node& node = graph.nodes[id];
  const auto check_place = [&](BufferId buffer, int64_t begin, int64_t end) {
    const Buffer& b = graph.buffers[buffer];
    if (begin < 0 || end > b.bytes) {
      return Broken(NodeText(graph, id), " touches bytes [", begin, ", ", end,
                    ") of ", b.name, ", which has ", b.bytes);
    }
    if (begin < end && plan.memory.offsets[buffer] == kNone)
      return Broken(NodeText(graph, id), " touches ", b.name,
                    ", which has no place in the arena");
    return absl::OkStatus();
  };
  for (const auto& values : {absl::MakeConstSpan(node.operands),
                             absl::MakeConstSpan(node.results)}) {
    for (ValueId value_id : values) {
      const Value& value = graph.values[value_id];
      SG_RETURN_IF_ERROR(check_place(value.buffer, value.begin(), value.end()));
    }
  }
  if (node.workspace != kNone) {
    if (graph.buffers[node.workspace].lifetime != Lifetime::kPhase)
      return Broken(NodeText(graph, id), ": its workspace outlives the phase");
    SG_RETURN_IF_ERROR(
        check_place(node.workspace, 0, graph.buffers[node.workspace].bytes));
  }
  const int num_operands = static_cast<int>(node.operands.size());
  const int num_results = static_cast<int>(node.results.size());
  for (int r = 0; r < num_results; ++r) {
    const int tied =
        TiedOperand(*node.op, node.attributes, num_operands, num_results, r);
    if (tied < 0) continue;
    if (tied >= num_operands) {
      return Broken(NodeText(graph, id), ": result ", r, " is tied to operand ",
                    tied, ", which is not there");
    }
    const Value& operand = graph.values[node.operands[tied]];
    const Value& result = graph.values[node.results[r]];
    if (operand.buffer != result.buffer || operand.offset != result.offset ||
        !(operand.type == result.type)) {
      return Broken(NodeText(graph, id), ": result ", r, " updates operand ",
                    tied, " in place but lies in ",
                    graph.buffers[result.buffer].name, " at ", result.offset,
                    ", the operand in ", graph.buffers[operand.buffer].name,
                    " at ", operand.offset);
    }
  }
  return VerifyCollective(graph, id);
}

// What take_shard has put aside of a whole is gathered again over the group
// that it was cut for, to the same whole.
absl::Status VerifyGatherOfTaken(const Graph& graph, NodeId take,
                                 NodeId gather) {
  const Node& from = graph.nodes[take];
  const Node& to = graph.nodes[gather];
  const Value& taken = graph.values[from.results[0]];
  const Value& read = graph.values[to.operands[0]];
  if (from.attributes.String(kGroupAttribute) !=
          to.attributes.String(kGroupAttribute) ||
      from.unit != to.unit || taken.offset != read.offset ||
      !(taken.type == read.type) ||
      !(graph.values[from.operands[0]].type ==
        graph.values[to.results[0]].type)) {
    return Broken(NodeText(graph, gather), " does not make whole again what ",
                  NodeText(graph, take), " has cut");
  }
  return absl::OkStatus();
}

// The gathers and reduce-scatters of one unit move one kind of shard: one
// group; but for gathers of what was taken of what such a gather has made.
absl::Status VerifyUnitGroups(const Graph& graph) {
  std::map<UnitId, NodeId> first;
  for (const Phase& phase : graph.phases) {
    std::map<BufferId, NodeId> taken, gathered;
    for (NodeId id : phase.nodes) {
      const Node& node = graph.nodes[id];
      if (node.op->name == "take_shard" && !node.results.empty()) {
        const Value& whole = graph.values[node.operands[0]];
        const auto made = gathered.find(whole.buffer);
        if (made == gathered.end() ||
            graph.nodes[made->second].unit != node.unit ||
            !(graph.values[graph.nodes[made->second].results[0]].type ==
              whole.type)) {
          return Broken(NodeText(graph, id),
                        " takes its piece of what is no gathered whole");
        }
        taken[graph.values[node.results[0]].buffer] = id;
        continue;
      }
      // An all_gather on the reduce lane is the second half of a sum.
      if (node.unit == kNone || node.results.empty() ||
          (node.op->name == "all_gather" ? node.lane != LaneKind::kGather
                                         : node.op->name != "reduce_scatter")) {
        continue;
      }
      if (const auto cut = taken.find(graph.values[node.operands[0]].buffer);
          cut != taken.end()) {
        SG_RETURN_IF_ERROR(VerifyGatherOfTaken(graph, cut->second, id));
        continue;
      }
      if (node.op->name == "all_gather")
        gathered[graph.values[node.results[0]].buffer] = id;
      const auto [it, is_new] = first.emplace(node.unit, id);
      if (is_new) continue;
      const Node& other = graph.nodes[it->second];
      if (node.attributes.String(kGroupAttribute) !=
          other.attributes.String(kGroupAttribute)) {
        return Broken(NodeText(graph, id), " and ", NodeText(graph, it->second),
                      " are of one unit and name different groups");
      }
    }
  }
  return absl::OkStatus();
}

// Byte ranges by buffer.
using Ranges = std::map<BufferId, std::vector<std::pair<int64_t, int64_t>>>;

// Step-lifetime bytes that are read are written by some phase.
absl::Status VerifyStepBuffers(const Graph& graph) {
  Ranges written;
  const auto for_each = [&](auto visit) {
    for (const Phase& phase : graph.phases)
      for (NodeId id : phase.nodes) visit(phase, id);
  };
  for_each([&](const Phase&, NodeId id) {
    for (ValueId result : graph.nodes[id].results) {
      const Value& value = graph.values[result];
      if (graph.buffers[value.buffer].lifetime == Lifetime::kStep)
        written[value.buffer].push_back({value.begin(), value.end()});
    }
  });
  for (auto& [buffer, ranges] : written)
    std::sort(ranges.begin(), ranges.end());
  absl::Status status;
  for_each([&](const Phase& phase, NodeId id) {
    for (ValueId operand : graph.nodes[id].operands) {
      const Value& value = graph.values[operand];
      if (graph.buffers[value.buffer].lifetime != Lifetime::kStep) continue;
      int64_t covered = value.begin();
      for (const auto& [begin, end] : written[value.buffer]) {
        if (begin > covered) break;
        covered = std::max(covered, end);
      }
      if (covered < value.end() && status.ok()) {
        status = Broken("phase ", phase.name, ": ", NodeText(graph, id),
                        " reads bytes [", covered, ", ", value.end(), ") of ",
                        graph.buffers[value.buffer].name,
                        ", which no phase writes: accumulate is missing");
      }
    }
  });
  return status;
}

// What a node computes is read by a later one, named as an output, or outlives
// the phase; all but what is incidental to an op, of which one result must do.
absl::Status VerifyResultsAreUsed(const Graph& graph) {
  std::vector<ByteMap<bool>> outputs(graph.buffers.size());
  for (const auto& [name, id] : graph.outputs) {
    const Value& value = graph.values[id];
    outputs[value.buffer].Set(value.begin(), value.end(), true);
  }
  for (const Phase& phase : graph.phases) {
    std::vector<ByteMap<bool>> needed = outputs;
    const auto is_needed = [&](ValueId id) {
      const Value& value = graph.values[id];
      bool any = graph.buffers[value.buffer].lifetime != Lifetime::kPhase ||
                 value.begin() == value.end();
      needed[value.buffer].ForEach(
          value.begin(), value.end(), false,
          [&](int64_t, int64_t, bool later) { any |= later; });
      return any;
    };
    for (auto it = phase.nodes.rbegin(); it != phase.nodes.rend(); ++it) {
      const Node& node = graph.nodes[*it];
      bool any = node.results.empty();
      for (size_t r = 0; r < node.results.size(); ++r) {
        if (is_needed(node.results[r])) {
          any = true;
        } else if ((node.op->incidental_results >> r & 1) == 0) {
          return Broken("phase ", phase.name, ": ", NodeText(graph, *it),
                        " computes what nothing reads: result ", r, ", ",
                        graph.buffer_of(node.results[r]).name);
        }
      }
      if (!any) {
        return Broken("phase ", phase.name, ": ", NodeText(graph, *it),
                      " computes what nothing reads");
      }
      for (ValueId id : node.results) {
        const Value& value = graph.values[id];
        if (value.type.contiguous())
          needed[value.buffer].Set(value.begin(), value.end(), false);
      }
      for (ValueId id : node.operands) {
        const Value& value = graph.values[id];
        needed[value.buffer].Set(value.begin(), value.end(), true);
      }
    }
  }
  return absl::OkStatus();
}

// Each operand is the version of its bytes that the graph says it is: the node
// that made it is there, and so are all writes that it counts.
absl::Status VerifyVersions(const Graph& graph) {
  struct Write {
    NodeId node;
    int64_t begin;
    int64_t end;
  };
  std::vector<std::vector<Write>> writes(graph.buffers.size());
  for (const Phase& phase : graph.phases) {
    for (std::vector<Write>& of_buffer : writes) of_buffer.clear();
    for (NodeId id : phase.nodes) {
      for (ValueId operand : graph.nodes[id].operands) {
        const Value* value = &graph.values[operand];
        while (value->base != kNone) value = &graph.values[value->base];
        if (value->producer == kNone) continue;
        bool is_there = false, is_result = false;
        int32_t count = 0;
        for (const Write& write : writes[value->buffer]) {
          if (write.begin >= value->end() || value->begin() >= write.end)
            continue;
          ++count;
          is_there |= write.node == value->producer;
        }
        for (ValueId result : graph.nodes[value->producer].results)
          is_result |= &graph.values[result] == value;
        if (!is_there || (!is_result && count != value->version)) {
          return Broken(
              "phase ", phase.name, ": ", NodeText(graph, id),
              " reads version ", value->version, " of bytes [", value->begin(),
              ", ", value->end(), ") of ", graph.buffers[value->buffer].name,
              ", written by ", NodeText(graph, value->producer),
              is_there ? "" : ", which is not there", "; they are written ",
              count, " times before: a contribution is lost");
        }
      }
      for (ValueId result : graph.nodes[id].results) {
        const Value& value = graph.values[result];
        if (value.begin() < value.end())
          writes[value.buffer].push_back({id, value.begin(), value.end()});
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Verify(const StepPlan& plan) {
  const Graph& graph = plan.graph;
  if (plan.num_lanes < 1 || plan.num_lanes > 4)
    return Broken("the plan has ", plan.num_lanes, " lanes, not 1 to 4");
  if (plan.schedules.size() != graph.phases.size()) {
    return Broken(plan.schedules.size(), " schedules for ", graph.phases.size(),
                  " phases");
  }
  for (size_t p = 0; p < graph.phases.size(); ++p)
    SG_RETURN_IF_ERROR(VerifySchedule(plan, static_cast<PhaseId>(p)));
  SG_RETURN_IF_ERROR(VerifyMemory(plan));
  for (const Phase& phase : graph.phases) {
    for (NodeId id : phase.nodes) SG_RETURN_IF_ERROR(VerifyNode(plan, id));
  }
  SG_RETURN_IF_ERROR(VerifyUnitGroups(graph));
  SG_RETURN_IF_ERROR(VerifyStepBuffers(graph));
  SG_RETURN_IF_ERROR(VerifyVersions(graph));
  PaddingReads padding;
  for (size_t p = 0; p < graph.phases.size(); ++p)
    SG_RETURN_IF_ERROR(VerifyPhase(plan, static_cast<PhaseId>(p), &padding));
  SG_RETURN_IF_ERROR(VerifyResultsAreUsed(graph));
  SG_RETURN_IF_ERROR(VerifyPadding(graph, padding));
  return VerifyReductions(graph);
}

}  // namespace shardgraph
