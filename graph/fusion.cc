#include "graph/fusion.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "graph/region.h"

namespace shardgraph {
namespace {

using Ids = absl::InlinedVector<ValueId, 4>;

// Operands without those that results accumulate into.
int NumPlainOperands(const Node& node) {
  const uint64_t mask =
      static_cast<uint64_t>(node.attributes.Int("accumulate"));
  return static_cast<int>(node.operands.size()) - std::popcount(mask);
}

// An absent attribute counts as 0 or "".
bool HasAttributes(const Attributes& attributes, const Attributes& wanted) {
  for (const auto& [name, value] : wanted.entries()) {
    const bool equal =
        std::holds_alternative<int64_t>(value)
            ? attributes.Int(name) == std::get<int64_t>(value)
            : attributes.String(name) == std::get<std::string>(value);
    if (!equal) return false;
  }
  return true;
}

// Whether an attribute may as well be absent.
bool IsDefault(const Attributes::Value& value) {
  return value == Attributes::Value(int64_t{0}) ||
         value == Attributes::Value(std::string());
}

// Whether two values may have an element in common. Views of one buffer may
// interleave (columns of a product): ranges of bytes do not tell.
bool MayOverlap(const Value& a, const Value& b) {
  if (a.buffer != b.buffer ||
      std::max(a.begin(), b.begin()) >= std::min(a.end(), b.end())) {
    return false;
  }
  const int64_t size = SizeOf(a.type.dtype);
  if (a.type.dtype != b.type.dtype || a.offset % size != 0 ||
      b.offset % size != 0) {
    return true;
  }
  return !Disjoint(Region(a.offset / size, a.type),
                   Region(b.offset / size, b.type));
}

bool IsIn(const std::vector<int64_t>& positions, int64_t position) {
  return std::find(positions.begin(), positions.end(), position) !=
         positions.end();
}

class Fuser {
 public:
  Fuser(Graph& graph, PhaseId phase, const FusionPattern& pattern)
      : graph_(graph),
        program_(graph.phases[phase].nodes),
        pattern_(ParseFusion(pattern)) {}

  int Run() {
    const OpDef* const last = pattern_.replaces.back().op;
    for (size_t i = 0; i < program_.size(); ++i) {
      if (program_[i] == kNone || graph_.nodes[program_[i]].op != last)
        continue;
      if (accesses_.empty()) IndexAccesses();
      bound_.assign(pattern_.variables, std::nullopt);
      positions_.assign(pattern_.replaces.size(), -1);
      fused_ += TryFuse(pattern_.replaces.size() - 1, i);
    }
    if (fused_ > 0) Finish();
    return fused_;
  }

 private:
  struct Touch {
    int64_t position;
    ValueId value;
    bool write;
  };

  const Node& NodeAt(int64_t position) const {
    return graph_.nodes[program_[position]];
  }

  // By value, for MayOverlap. Workspaces are nobody else's.
  void AddAccesses(int64_t position) {
    const Node& node = NodeAt(position);
    for (ValueId id : node.operands)
      accesses_[graph_.values[id].buffer].push_back({position, id, false});
    for (ValueId id : node.results)
      accesses_[graph_.values[id].buffer].push_back({position, id, true});
  }
  void IndexAccesses() {
    for (size_t i = 0; i < program_.size(); ++i) AddAccesses(i);
  }

  // Takes the node at `position` as number `k` of the pattern, looks for the
  // others and replaces all. False, with nothing changed, when that does not
  // work.
  bool TryFuse(size_t k, int64_t position) {
    const auto bound = bound_;
    positions_[k] = position;
    if (Bind(pattern_.replaces[k], NodeAt(position)) && FindOthers())
      return true;
    positions_[k] = -1;
    bound_ = bound;
    return false;
  }

  bool FindOthers() {
    // Whoever is best known by values that it shares with those found so far:
    // all layers read the same positions.
    size_t next = 0;
    std::vector<int64_t> fewest;
    bool all_found = true;
    for (size_t k = 0; k < positions_.size(); ++k) {
      if (positions_[k] >= 0) continue;
      all_found = false;
      std::vector<int64_t> candidates = Candidates(pattern_.replaces[k]);
      if (candidates.empty() ||
          (!fewest.empty() && fewest.size() <= candidates.size())) {
        continue;
      }
      next = k;
      fewest = std::move(candidates);
    }
    if (all_found) return Replace();
    for (int64_t position : fewest) {
      if (!IsIn(positions_, position) && TryFuse(next, position)) return true;
    }
    return false;
  }

  // Where a node of the pattern may stand, given what is bound.
  std::vector<int64_t> Candidates(const FusionNode& wanted) const {
    std::vector<int64_t> candidates;
    const auto add = [&](int variable, bool write) {
      if (!bound_[variable].has_value() || bound_[variable]->size() != 1)
        return;
      const Value& value = graph_.values[bound_[variable]->front()];
      const auto found = accesses_.find(value.buffer);
      if (found == accesses_.end()) return;
      for (const Touch& touch : found->second) {
        const Value& touched = graph_.values[touch.value];
        if (touch.write == write && touched.begin() <= value.begin() &&
            touched.end() >= value.end() &&
            NodeAt(touch.position).op == wanted.op) {
          candidates.push_back(touch.position);
        }
      }
    };
    for (int variable : wanted.results) {
      add(variable, true);
      for (const FusionHalf& half : pattern_.halves) {
        if (half.whole == variable) add(half.half, true);
      }
    }
    if (!candidates.empty()) return candidates;
    for (int variable : wanted.operands) add(variable, false);
    return candidates;
  }

  bool SameValue(ValueId a, ValueId b) const {
    if (a == b) return true;
    const Value &x = graph_.values[a], &y = graph_.values[b];
    return x.buffer == y.buffer && x.offset == y.offset && x.type == y.type &&
           x.version == y.version;
  }

  bool BindTo(int variable, Ids values) {
    std::optional<Ids>& bound = bound_[variable];
    if (!bound.has_value()) {
      bound = std::move(values);
      return true;
    }
    return std::equal(bound->begin(), bound->end(), values.begin(),
                      values.end(),
                      [&](ValueId a, ValueId b) { return SameValue(a, b); });
  }

  bool Bind(const FusionNode& wanted, const Node& node) {
    const int operands = NumPlainOperands(node);
    const int named = static_cast<int>(wanted.operands.size()) - wanted.rest;
    if (node.op != wanted.op || node.workspace != kNone ||
        node.results.size() != wanted.results.size() || operands < named ||
        (!wanted.rest && operands != named) ||
        !HasAttributes(node.attributes, wanted.attributes)) {
      return false;
    }
    for (size_t r = 0; r < wanted.results.size(); ++r) {
      if (!BindTo(wanted.results[r], {node.results[r]})) return false;
    }
    for (int i = 0; i < named; ++i) {
      if (!BindTo(wanted.operands[i], {node.operands[i]})) return false;
    }
    return !wanted.rest || BindTo(wanted.operands.back(),
                                  Ids(node.operands.begin() + named,
                                      node.operands.begin() + operands));
  }

  // Positions of the nodes that go: shared ones stay.
  std::vector<int64_t> ReplacedPositions() const {
    std::vector<int64_t> replaced;
    for (size_t k = 0; k < positions_.size(); ++k)
      if (!pattern_.replaces[k].shared) replaced.push_back(positions_[k]);
    return replaced;
  }

  template <typename Condition>
  bool AnyTouch(const Value& value, const Condition& condition) const {
    const auto found = accesses_.find(value.buffer);
    return found != accesses_.end() &&
           std::any_of(found->second.begin(), found->second.end(),
                       [&](const Touch& touch) {
                         return condition(touch) &&
                                MayOverlap(graph_.values[touch.value], value);
                       });
  }

  bool HalvesAreHalves() const {
    for (const FusionHalf& relation : pattern_.halves) {
      const Value& whole = graph_.values[bound_[relation.whole]->front()];
      const Value& half = graph_.values[bound_[relation.half]->front()];
      if (whole.type.rank() != 2 || whole.type.dim(1) % 2 != 0) return false;
      TensorType type = whole.type;
      type.shape[1] /= 2;
      const int64_t bytes = type.shape[1] * SizeOf(type.dtype);
      if (half.buffer != whole.buffer || half.version != whole.version ||
          half.offset != whole.offset + (relation.right ? bytes : 0) ||
          !(half.type == type)) {
        return false;
      }
    }
    return true;
  }

  // What the fused node reads in place of a shared node's results is what that
  // node made them of: nobody has written over them before they are read.
  bool SharedResultsAreRead() const {
    for (size_t k = 0; k < positions_.size(); ++k) {
      for (int variable : pattern_.replaces[k].operands) {
        const int source = pattern_.sources[variable];
        if (source < 0) continue;
        const int64_t begin = positions_[source], end = positions_[k];
        if (begin > end || AnyTouch(graph_.values[bound_[variable]->front()],
                                    [&](const Touch& touch) {
                                      return touch.write &&
                                             begin < touch.position &&
                                             touch.position < end;
                                    })) {
          return false;
        }
      }
    }
    return true;
  }

  // Whether `fused` may do again what `node` does.
  bool CanShare(const Node& node, const Node& fused) const {
    // Backward reads what is made again for it, never what forward had.
    return node.direction == fused.direction ||
           std::none_of(
               node.operands.begin(), node.operands.end(),
               [&](ValueId id) { return graph_.buffer_of(id).rematerialize; });
  }

  // Whether one node may have the attributes of both, as far as `by` leaves
  // them alone.
  bool AttributesAgree(const Node& a, const Node& b) const {
    for (const auto& [name, value] : a.attributes.entries()) {
      if (name == "accumulate" || pattern_.by.attributes.Has(name)) continue;
      // Other ops need not know it.
      if (!b.attributes.Has(name) && a.op == b.op && !IsDefault(value))
        return false;
      for (const auto& [other, set] : b.attributes.entries())
        if (other == name && set != value) return false;
    }
    return true;
  }

  // The node that would take the place of those found; its place is open.
  std::optional<Node> MakeFused() const {
    Node fused = NodeAt(positions_.back());
    fused.op = pattern_.by.op;
    fused.attributes = {};
    fused.operands.clear();
    fused.results.clear();
    int64_t accumulate = 0;
    std::map<int, ValueId> destinations;  // by result of the fused node
    for (size_t k = 0; k < positions_.size(); ++k) {
      const Node& node = NodeAt(positions_[k]);
      if (node.lane != fused.lane) return std::nullopt;
      if (pattern_.replaces[k].shared ? !CanShare(node, fused)
                                      : node.direction != fused.direction) {
        return std::nullopt;
      }
      for (int64_t position : positions_)
        if (!AttributesAgree(node, NodeAt(position))) return std::nullopt;
      for (const auto& [name, value] : node.attributes.entries())
        if (name != "accumulate") fused.attributes.Set(name, value);
      int destination = NumPlainOperands(node);
      for (size_t r = 0; r < node.results.size(); ++r) {
        if ((node.attributes.Int("accumulate") >> r & 1) == 0) continue;
        const auto& results = pattern_.by.results;
        const auto found = std::find(results.begin(), results.end(),
                                     pattern_.replaces[k].results[r]);
        if (found == results.end()) return std::nullopt;  // or shared
        const int index = static_cast<int>(found - results.begin());
        accumulate |= int64_t{1} << index;
        destinations[index] = node.operands[destination++];
      }
    }
    for (const auto& [name, value] : pattern_.by.attributes.entries())
      fused.attributes.Set(name, value);
    if (accumulate != 0) fused.attributes.SetInt("accumulate", accumulate);
    for (int variable : pattern_.by.operands) {
      for (ValueId value : *bound_[variable]) fused.operands.push_back(value);
    }
    for (const auto& [index, value] : destinations)
      fused.operands.push_back(value);
    for (int variable : pattern_.by.results)
      fused.results.push_back(bound_[variable]->front());
    return fused;
  }

  // The op takes over the results as they are.
  bool Fits(const Node& fused) const {
    std::vector<TensorType> types;
    if (!InferResults(*fused.op, fused.attributes, graph_.OperandTypes(fused),
                      &types)
             .ok() ||
        types.size() != fused.results.size()) {
      return false;
    }
    for (size_t r = 0; r < types.size(); ++r) {
      const Value& result = graph_.values[fused.results[r]];
      if (result.type.dtype != types[r].dtype ||
          result.type.shape != types[r].shape) {
        return false;
      }
      const int tied = TiedOperand(*fused.op, fused.attributes,
                                   fused.operands.size(), types.size(), r);
      if (tied < 0 && !result.type.contiguous() &&
          (fused.op->strided_results >> r & 1) == 0) {
        return false;
      }
      for (size_t i = 0; i < fused.operands.size(); ++i) {
        if (static_cast<int>(i) != tied &&
            MayOverlap(graph_.values[fused.operands[i]], result)) {
          return false;
        }
      }
      for (size_t other = 0; other < r; ++other) {
        if (MayOverlap(graph_.values[fused.results[other]], result))
          return false;
      }
    }
    return true;
  }

  // Results that go are nobody else's business.
  bool OthersKnowOnlyResults(const Node& fused,
                             const std::vector<int64_t>& replaced) const {
    for (int64_t position : replaced) {
      for (ValueId id : NodeAt(position).results) {
        if (std::find(fused.results.begin(), fused.results.end(), id) !=
            fused.results.end()) {
          continue;
        }
        const Value& value = graph_.values[id];
        if (graph_.buffers[value.buffer].lifetime != Lifetime::kPhase)
          return false;
        for (const auto& [name, output] : graph_.outputs) {
          if (graph_.values[output].buffer == value.buffer) return false;
        }
        if (AnyTouch(value, [&](const Touch& touch) {
              return !IsIn(replaced, touch.position);
            })) {
          return false;
        }
      }
    }
    return true;
  }

  // What the fused node takes over of those found, and where they do it: it
  // neither reads nor writes results of shared nodes.
  std::vector<Touch> TakenOver() const {
    std::vector<Touch> touches;
    for (size_t k = 0; k < positions_.size(); ++k) {
      const FusionNode& wanted = pattern_.replaces[k];
      const Node& node = NodeAt(positions_[k]);
      const size_t named = wanted.operands.size() - wanted.rest;
      for (size_t i = 0; i < node.operands.size(); ++i) {
        if (i < named && pattern_.sources[wanted.operands[i]] >= 0) continue;
        touches.push_back({positions_[k], node.operands[i], false});
      }
      if (wanted.shared) continue;
      for (ValueId id : node.results)
        touches.push_back({positions_[k], id, true});
    }
    return touches;
  }

  // All of it may as well be done at `place`: nobody on the way touches the
  // same, reads of both apart.
  bool CanMeetAt(int64_t place, const std::vector<int64_t>& replaced) const {
    for (const Touch& taken : TakenOver()) {
      const int64_t begin = std::min(taken.position, place);
      const int64_t end = std::max(taken.position, place);
      if (AnyTouch(graph_.values[taken.value], [&](const Touch& touch) {
            return touch.position >= begin && touch.position <= end &&
                   (touch.write || taken.write) &&
                   !IsIn(replaced, touch.position);
          })) {
        return false;
      }
    }
    return true;
  }

  bool Replace() {
    const std::vector<int64_t> replaced = ReplacedPositions();
    std::optional<Node> fused = MakeFused();
    if (!fused.has_value() || !HalvesAreHalves() || !SharedResultsAreRead() ||
        !Fits(*fused) || !OthersKnowOnlyResults(*fused, replaced)) {
      return false;
    }
    const auto [first, last] =
        std::minmax_element(replaced.begin(), replaced.end());
    int64_t place = *last;
    if (!CanMeetAt(place, replaced)) place = *first;
    if (!CanMeetAt(place, replaced)) return false;

    for (int64_t position : replaced) {
      const Node& node = NodeAt(position);
      for (const auto& ids : {absl::MakeConstSpan(node.operands),
                              absl::MakeConstSpan(node.results)}) {
        for (ValueId id : ids) {
          std::vector<Touch>& touches = accesses_[graph_.values[id].buffer];
          touches.erase(std::remove_if(touches.begin(), touches.end(),
                                       [&](const Touch& touch) {
                                         return touch.position == position;
                                       }),
                        touches.end());
        }
      }
    }
    const NodeId id = program_[place];
    for (int64_t position : replaced) {
      replaced_by_[program_[position]] = id;
      if (position != place) program_[position] = kNone;
    }
    fused->scope = graph_.nodes[id].scope;
    fused->unit = graph_.nodes[id].unit;
    graph_.nodes[id] = *std::move(fused);
    AddAccesses(place);
    return true;
  }

  void Finish() {
    program_.erase(std::remove(program_.begin(), program_.end(), kNone),
                   program_.end());
    for (Value& value : graph_.values) {
      if (const auto found = replaced_by_.find(value.producer);
          found != replaced_by_.end()) {
        value.producer = found->second;
      }
    }
  }

  Graph& graph_;
  std::vector<NodeId>& program_;  // kNone: replaced
  const ParsedFusion pattern_;
  std::map<BufferId, std::vector<Touch>> accesses_;
  std::map<NodeId, NodeId> replaced_by_;
  // The match being tried: values of variables, positions of nodes.
  std::vector<std::optional<Ids>> bound_;
  std::vector<int64_t> positions_;
  int fused_ = 0;
};

}  // namespace

int Fuse(Graph& graph, PhaseId phase, const FusionPattern& pattern) {
  return Fuser(graph, phase, pattern).Run();
}

}  // namespace shardgraph
