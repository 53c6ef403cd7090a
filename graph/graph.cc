#include "graph/graph.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace shardgraph {
namespace {

constexpr std::array<absl::string_view, kNumMemoryKinds> kMemoryKindNames = {
    "master_parameter",
    "compute_parameter",
    "optimizer_state",
    "gradient_shard",
    "gathered_parameter",
    "gradient",
    "reduce_stage",
    "activation",
    "input",
    "state",
    "cache",
    "workspace",
};

std::string ValueName(ValueId id) { return absl::StrCat("%", id); }

}  // namespace

Graph::Graph() = default;
Graph::Graph(const Graph& other) = default;
Graph::Graph(Graph&& other) noexcept = default;
Graph& Graph::operator=(const Graph& other) = default;
Graph& Graph::operator=(Graph&& other) noexcept = default;
Graph::~Graph() = default;

absl::string_view MemoryKindName(MemoryKind kind) {
  return kMemoryKindNames[static_cast<int>(kind)];
}

absl::string_view DirectionName(Direction direction) {
  constexpr std::array<absl::string_view, 4> kNames = {"forward", "recompute",
                                                       "backward", "update"};
  return kNames[static_cast<int>(direction)];
}

BufferId Graph::FindBuffer(absl::string_view name) const {
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].name == name) return static_cast<BufferId>(i);
  }
  return kNone;
}

PhaseId Graph::FindPhase(absl::string_view name) const {
  for (size_t i = 0; i < phases.size(); ++i) {
    if (phases[i].name == name) return static_cast<PhaseId>(i);
  }
  return kNone;
}

const Group* Graph::FindGroup(absl::string_view name) const {
  for (const Group& group : groups) {
    if (group.name == name) return &group;
  }
  return nullptr;
}

std::vector<TensorType> Graph::OperandTypes(const Node& node) const {
  std::vector<TensorType> types;
  types.reserve(node.operands.size());
  for (ValueId id : node.operands) types.push_back(values[id].type);
  return types;
}

std::vector<TensorType> Graph::ResultTypes(const Node& node) const {
  std::vector<TensorType> types;
  types.reserve(node.results.size());
  for (ValueId id : node.results) types.push_back(values[id].type);
  return types;
}

void AppendAccesses(const Graph& graph, const Node& node,
                    std::vector<Access>* accesses) {
  for (ValueId id : node.operands) {
    const Value& value = graph.values[id];
    if (value.begin() < value.end())
      accesses->push_back({value.buffer, value.begin(), value.end(), false});
  }
  for (ValueId id : node.results) {
    const Value& value = graph.values[id];
    if (value.begin() < value.end())
      accesses->push_back({value.buffer, value.begin(), value.end(), true});
  }
  if (node.workspace != kNone && graph.buffers[node.workspace].bytes > 0) {
    accesses->push_back(
        {node.workspace, 0, graph.buffers[node.workspace].bytes, true});
  }
}

std::string PrintNode(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  const auto append_name = [](std::string* out, ValueId value) {
    absl::StrAppend(out, ValueName(value));
  };
  std::string text =
      absl::StrCat(absl::StrJoin(node.results, ", ", append_name), " = ",
                   std::string(node.op->name), "(",
                   absl::StrJoin(node.operands, ", ", append_name), ")");
  if (const std::string attributes = node.attributes.ToString();
      !attributes.empty()) {
    absl::StrAppend(&text, " ", attributes);
  }
  absl::StrAppend(
      &text, " : ",
      absl::StrJoin(node.results, ", ", [&](std::string* out, ValueId value) {
        absl::StrAppend(out, graph.values[value].type.ToString());
      }));
  if (node.workspace != kNone)
    absl::StrAppend(&text, " workspace=", graph.buffers[node.workspace].bytes);
  absl::StrAppend(&text, " @", graph.scope_of(node), " ",
                  DirectionName(node.direction));
  return text;
}

std::string PrintGraph(const Graph& graph) {
  std::string text;
  for (const Group& group : graph.groups) {
    absl::StrAppend(&text, "group ", group.name, " size=", group.size,
                    " stride=", group.stride, "\n");
  }
  constexpr std::array<absl::string_view, 3> kLifetimes = {"run", "step",
                                                           "phase"};
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    absl::StrAppend(&text, "buffer ", i, " ", buffer.name,
                    " bytes=", buffer.bytes, " align=", buffer.alignment, " ",
                    kLifetimes[static_cast<int>(buffer.lifetime)], " ",
                    MemoryKindName(buffer.kind), "\n");
  }
  for (const auto& [name, value] : graph.inputs)
    absl::StrAppend(&text, "input ", name, " ", ValueName(value), "\n");
  for (const auto& [name, value] : graph.outputs)
    absl::StrAppend(&text, "output ", name, " ", ValueName(value), "\n");
  for (const Phase& phase : graph.phases) {
    absl::StrAppend(&text, "phase ", phase.name, "\n");
    for (NodeId id : phase.nodes) {
      for (ValueId value : graph.nodes[id].operands) {
        const Value& v = graph.values[value];
        if (v.producer == kNone || v.base != kNone) {
          absl::StrAppend(&text, "  ", ValueName(value), " : ",
                          v.type.ToString(), " in ", v.buffer, "+", v.offset,
                          "\n");
        }
      }
      absl::StrAppend(&text, "  ", PrintNode(graph, id));
      for (ValueId value : graph.nodes[id].results) {
        const Value& v = graph.values[value];
        absl::StrAppend(&text, " in ", v.buffer, "+", v.offset);
      }
      absl::StrAppend(&text, "\n");
    }
  }
  return text;
}

}  // namespace shardgraph
