// Lower: what nobody needs goes, what one op can do becomes one node, what is
// left gets its scratch memory.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/fusion.h"
#include "graph/passes.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// A set of byte ranges of one buffer.
class Ranges {
 public:
  void Add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    auto it = ends_.upper_bound(begin);
    if (it != ends_.begin() && std::prev(it)->second >= begin) --it;
    while (it != ends_.end() && it->first <= end) {
      begin = std::min(begin, it->first);
      end = std::max(end, it->second);
      it = ends_.erase(it);
    }
    ends_[begin] = end;
  }
  bool Intersects(int64_t begin, int64_t end) const {
    auto it = ends_.lower_bound(end);
    return begin < end && it != ends_.begin() && std::prev(it)->second > begin;
  }

 private:
  std::map<int64_t, int64_t> ends_;  // begin -> end
};

// Keeps, walking backwards, what writes something persistent or something that
// is read later.
void DropDeadNodes(Graph& graph, Phase& phase) {
  std::map<BufferId, Ranges> needed;
  for (const auto& [name, id] : graph.outputs) {
    const Value& value = graph.values[id];
    needed[value.buffer].Add(value.begin(), value.end());
  }
  std::vector<NodeId> kept;
  for (auto it = phase.nodes.rbegin(); it != phase.nodes.rend(); ++it) {
    const Node& node = graph.nodes[*it];
    const bool live =
        std::any_of(node.results.begin(), node.results.end(), [&](ValueId id) {
          const Value& value = graph.values[id];
          if (graph.buffers[value.buffer].lifetime != Lifetime::kPhase)
            return true;
          const auto found = needed.find(value.buffer);
          return found != needed.end() &&
                 found->second.Intersects(value.begin(), value.end());
        });
    if (!live) continue;
    kept.push_back(*it);
    for (ValueId id : node.operands) {
      const Value& value = graph.values[id];
      needed[value.buffer].Add(value.begin(), value.end());
    }
  }
  phase.nodes.assign(kept.rbegin(), kept.rend());
}

// Every buffer starts where the target wants it; what collectives move, at a
// multiple of its windows.
void AlignBuffers(Graph& graph, const TargetSpec& target) {
  const auto align = [](int64_t to, Buffer* buffer) {
    if (to > 1) buffer->alignment = std::lcm(buffer->alignment, to);
  };
  for (Buffer& buffer : graph.buffers)
    align(target.buffer_alignment(), &buffer);
  for (const Phase& phase : graph.phases) {
    for (NodeId id : phase.nodes) {
      const Node& node = graph.nodes[id];
      if (!node.attributes.Has(kGroupAttribute) ||
          !node.attributes.Has("size")) {
        continue;
      }
      for (const auto& values : {absl::MakeConstSpan(node.operands),
                                 absl::MakeConstSpan(node.results)}) {
        for (ValueId value : values) {
          align(target.window_alignment(),
                &graph.buffers[graph.values[value].buffer]);
        }
      }
    }
  }
}

}  // namespace

absl::Status Lower(Graph& graph, const TargetSpec& target,
                   const WorkspaceFunction& workspace,
                   absl::Span<const std::string> unfused) {
  for (Phase& phase : graph.phases) DropDeadNodes(graph, phase);
  for (const FusionPattern& pattern : FusionPatterns()) {
    const bool left =
        std::any_of(unfused.begin(), unfused.end(),
                    [&](const std::string& name) {
                      return name == pattern.name || name == kAllFusions;
                    }) ||
        (pattern.by_target &&
         std::find(target.fusions().begin(), target.fusions().end(),
                   pattern.name) == target.fusions().end());
    for (size_t i = 0; !left && i < graph.phases.size(); ++i)
      Fuse(graph, static_cast<PhaseId>(i), pattern);
  }
  // Nodes that fused ones share with nobody any more.
  for (Phase& phase : graph.phases) DropDeadNodes(graph, phase);
  for (Phase& phase : graph.phases) {
    if (workspace == nullptr) continue;
    for (NodeId id : phase.nodes) {
      SG_ASSIGN_OR_RETURN(const int64_t bytes,
                          workspace(graph, graph.nodes[id]));
      if (bytes < 0) {
        return absl::InternalError(absl::StrCat(
            "workspace of ", bytes, " bytes for ", PrintNode(graph, id)));
      }
      if (bytes == 0) continue;
      Node& node = graph.nodes[id];
      const std::string op(node.op->name);
      const std::string family(FamilyOf(node.op->name));
      const auto budget = target.workspace_budget().find(family);
      if (budget != target.workspace_budget().end() && bytes > budget->second) {
        return absl::ResourceExhaustedError(absl::StrCat(
            PrintNode(graph, id), " needs ", bytes,
            " bytes of workspace; target \"", target.name(), "\" allows ",
            budget->second, " (workspace_budget[\"", family,
            "\"]): raise it or make the operands smaller"));
      }
      Buffer buffer;
      buffer.name =
          absl::StrCat(graph.scope_of(node), "/", op, ".workspace.", id);
      buffer.bytes = bytes;
      buffer.kind = MemoryKind::kWorkspace;
      node.workspace = static_cast<BufferId>(graph.buffers.size());
      graph.buffers.push_back(std::move(buffer));
    }
  }
  AlignBuffers(graph, target);
  return absl::OkStatus();
}

}  // namespace shardgraph
