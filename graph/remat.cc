// Rematerialize: reshard after forward and activation recomputation are one
// pass. What forward wrote into marked buffers is written once more, into
// buffers of its own, when backward needs it.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/builder.h"
#include "graph/passes.h"
#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Rematerializer {
 public:
  Rematerializer(Graph& graph, PhaseId phase, const Recipes& recipes)
      : graph_(graph),
        recipes_(recipes),
        program_(graph.phases[phase].nodes),
        builder_(&graph),
        needed_(graph.buffers.size(), false),
        again_(graph.buffers.size(), kNone),
        cloned_(program_.size(), false),
        insertion_(graph.units.size() + 1, kNever) {
    builder_.SetPhase(graph.phases[phase].name);
    builder_.SetDirection(Direction::kRecompute);
  }

  absl::Status Run() {
    FindWriters();
    for (size_t i = 0; i < program_.size(); ++i) {
      const Node& node = graph_.nodes[program_[i]];
      if (node.direction != Direction::kBackward) continue;
      for (ValueId v : node.operands) Need(v, i);
    }
    SettleInsertions();

    std::map<int64_t, std::vector<int64_t>> clones;  // by insertion point
    for (size_t i = 0; i < program_.size(); ++i)
      if (cloned_[i]) clones[InsertionOf(i)].push_back(i);
    int64_t added = 0;
    for (size_t i = 0; i < program_.size(); ++i) {
      if (const auto here = clones.find(i); here != clones.end()) {
        builder_.SetInsertionPoint(static_cast<int64_t>(i) + added);
        for (int64_t original : here->second)
          SG_RETURN_IF_ERROR(Clone(original, i));
        added += here->second.size();
      }
      if (graph_.nodes[program_[i]].direction != Direction::kBackward) continue;
      for (size_t k = 0; k < graph_.nodes[program_[i]].operands.size(); ++k) {
        const ValueId v = graph_.nodes[program_[i]].operands[k];
        if (!IsNeeded(v)) continue;
        const ValueId mapped = Map(v);
        graph_.nodes[program_[i]].operands[k] = mapped;
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Write {
    int64_t position;
    int64_t begin;
    int64_t end;
  };

  void FindWriters() {
    for (size_t i = 0; i < program_.size(); ++i) {
      for (ValueId v : graph_.nodes[program_[i]].results) {
        const Value& value = graph_.values[v];
        position_[v] = static_cast<int64_t>(i);
        writes_[value.buffer].push_back(
            {static_cast<int64_t>(i), value.begin(), value.end()});
        if (graph_.buffers[value.buffer].rematerialize &&
            graph_.nodes[program_[i]].direction == Direction::kForward) {
          std::vector<int64_t>& writers = writers_[value.buffer];
          if (writers.empty() || writers.back() != static_cast<int64_t>(i))
            writers.push_back(i);
        }
      }
    }
  }

  // Backward, or a clone that goes to `position`, reads `v`.
  void Need(ValueId v, int64_t position) {
    const BufferId buffer = graph_.values[v].buffer;
    const auto it = writers_.find(buffer);
    if (it == writers_.end()) return;
    for (int64_t writer : it->second) {
      int64_t& insertion = InsertionOf(writer);
      insertion = std::min(insertion, position);
    }
    if (needed_[buffer]) return;
    needed_[buffer] = true;
    for (int64_t writer : it->second) {
      if (cloned_[writer]) continue;
      cloned_[writer] = true;
      for (ValueId operand : OperandsOf(writer)) Need(operand, position);
    }
  }

  // A unit is rerun no later than any unit that reads it when it is rerun.
  void SettleInsertions() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < program_.size(); ++i) {
        if (!cloned_[i]) continue;
        for (ValueId v : OperandsOf(i)) {
          const auto it = writers_.find(graph_.values[v].buffer);
          if (it == writers_.end()) continue;
          for (int64_t writer : it->second) {
            if (InsertionOf(writer) <= InsertionOf(i)) continue;
            InsertionOf(writer) = InsertionOf(i);
            changed = true;
          }
        }
      }
    }
  }

  // How the results of a node are made again; null: by the node.
  const Recipe* RecipeOf(int64_t position) const {
    const Node& node = graph_.nodes[program_[position]];
    for (ValueId result : node.results) {
      const auto it = recipes_.find(graph_.values[result].buffer);
      if (it == recipes_.end()) continue;
      SG_CHECK(node.results.size() == 1)
          << PrintNode(graph_, program_[position]) << " has a recipe";
      return &it->second;
    }
    return nullptr;
  }

  // What its rerun reads.
  absl::Span<const ValueId> OperandsOf(int64_t position) const {
    const Recipe* const recipe = RecipeOf(position);
    if (recipe != nullptr) return recipe->operands;
    return graph_.nodes[program_[position]].operands;
  }

  // All of a unit is rerun at one place.
  int64_t& InsertionOf(int64_t position) {
    return insertion_[graph_.nodes[program_[position]].unit + 1];
  }

  bool IsNeeded(ValueId v) const {
    const BufferId buffer = graph_.values[v].buffer;
    return static_cast<size_t>(buffer) < needed_.size() && needed_[buffer];
  }

  BufferId Again(BufferId buffer) {
    if (again_[buffer] == kNone) {
      Buffer copy = graph_.buffers[buffer];
      absl::StrAppend(&copy.name, ".again");
      copy.rematerialize = false;
      again_[buffer] = builder_.AddBuffer(std::move(copy));
    }
    return again_[buffer];
  }

  // The rerun counterpart of a value in a needed buffer.
  ValueId Map(ValueId v) {
    const auto it = mapped_.find(v);
    if (it != mapped_.end()) return it->second;
    const Value value = graph_.values[v];
    ValueId mapped;
    if (value.base != kNone) {
      const ValueId base = Map(value.base);
      mapped = builder_.View(base,
                             (value.offset - graph_.values[value.base].offset) /
                                 SizeOf(value.type.dtype),
                             value.type.shape, value.type.strides);
    } else {
      mapped = builder_.Current(Again(value.buffer), value.type, value.offset);
    }
    mapped_.emplace(v, mapped);
    return mapped;
  }

  // What a clone reads and does not rerun must still be what it was.
  absl::Status CheckUnchanged(ValueId v, int64_t original, int64_t insertion) {
    const Value& value = graph_.values[v];
    // A recipe may read what was written behind the original.
    if (const auto made = position_.find(v); made != position_.end())
      original = std::max(original, made->second);
    const auto it = writes_.find(value.buffer);
    if (it == writes_.end()) return absl::OkStatus();
    for (const Write& write : it->second) {
      if (write.position <= original || write.position >= insertion ||
          write.end <= value.begin() || value.end() <= write.begin) {
        continue;
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot rerun ", PrintNode(graph_, program_[original]),
          " for backward: ", PrintNode(graph_, program_[write.position]),
          " overwrites what it reads"));
    }
    return absl::OkStatus();
  }

  absl::Status Clone(int64_t original, int64_t insertion) {
    const Node node = graph_.nodes[program_[original]];
    const Recipe* const recipe = RecipeOf(original);
    absl::InlinedVector<ValueId, 6> operands;
    for (ValueId v : recipe != nullptr ? absl::MakeConstSpan(recipe->operands)
                                       : absl::MakeConstSpan(node.operands)) {
      if (IsNeeded(v)) {
        operands.push_back(Map(v));
      } else {
        SG_RETURN_IF_ERROR(CheckUnchanged(v, original, insertion));
        operands.push_back(v);
      }
    }
    std::vector<Placement> placements;
    for (size_t r = 0; r < node.results.size(); ++r) {
      const Value& value = graph_.values[node.results[r]];
      if (recipe != nullptr) {
        placements.push_back({Again(value.buffer), value.offset, value.type});
        continue;
      }
      const int tied =
          TiedOperand(*node.op, node.attributes, node.operands.size(),
                      node.results.size(), r);
      if (tied >= 0 && !IsNeeded(node.operands[tied])) {
        return absl::FailedPreconditionError(
            absl::StrCat("cannot rerun ", PrintNode(graph_, program_[original]),
                         " for backward: it would update its operand twice"));
      }
      placements.push_back(
          tied >= 0 ? Placement{}
                    : Placement{Again(value.buffer), value.offset, value.type});
    }
    builder_.TakeAnnotations(node);
    const auto results = builder_.Emit(
        recipe != nullptr ? absl::string_view(recipe->op) : node.op->name,
        operands, recipe != nullptr ? recipe->attributes : node.attributes,
        placements);
    for (size_t r = 0; r < results.size(); ++r)
      mapped_.emplace(node.results[r], results[r]);
    return absl::OkStatus();
  }

  Graph& graph_;
  const Recipes& recipes_;
  const std::vector<NodeId> program_;  // before the pass
  GraphBuilder builder_;
  std::map<BufferId, std::vector<Write>> writes_;
  // Marked buffers: positions of the forward nodes that write them.
  std::map<BufferId, std::vector<int64_t>> writers_;
  std::vector<bool> needed_;        // by buffer
  std::vector<BufferId> again_;     // by buffer: where the rerun writes
  std::vector<bool> cloned_;        // by position
  std::vector<int64_t> insertion_;  // by unit + 1: position
  std::map<ValueId, ValueId> mapped_;
  std::map<ValueId, int64_t> position_;  // of the node that makes it
};

}  // namespace

absl::Status Rematerialize(Graph& graph, PhaseId phase,
                           const Recipes& recipes) {
  SG_CHECK(phase >= 0 && phase < static_cast<PhaseId>(graph.phases.size()));
  return Rematerializer(graph, phase, recipes).Run();
}

}  // namespace shardgraph
