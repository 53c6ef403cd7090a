#include "graph/autodiff.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/gradient_slots.h"
#include "kernels/check.h"
#include "kernels/op.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Bytes of buffers.
class ByteSet {
 public:
  void Add(const Value& value) {
    std::vector<std::pair<int64_t, int64_t>>& ranges = ranges_[value.buffer];
    const std::pair range(value.begin(), value.end());
    if (std::find(ranges.begin(), ranges.end(), range) == ranges.end())
      ranges.push_back(range);
  }
  bool Overlaps(const Value& value) const {
    const auto it = ranges_.find(value.buffer);
    if (it == ranges_.end()) return false;
    for (const auto& [begin, end] : it->second)
      if (begin < value.end() && value.begin() < end) return true;
    return false;
  }

 private:
  std::map<BufferId, std::vector<std::pair<int64_t, int64_t>>> ranges_;
};

class Differentiator {
 public:
  Differentiator(GraphBuilder& builder, const DifferentiateOptions& options)
      : builder_(builder),
        graph_(builder.graph()),
        options_(options),
        slots_(builder, options.zero_unused) {}

  absl::Status Run() {
    SG_CHECK(builder_.phase() != kNone) << "Differentiate without a phase";
    program_ = graph_.phases[builder_.phase()].nodes;
    SG_RETURN_IF_ERROR(FindNeeds());
    SG_RETURN_IF_ERROR(FindActive());
    slots_.Plan();
    for (const GradientSeed& seed : options_.seeds) {
      if (Needs(seed.value)) slots_.Contribute(seed.value, seed.gradient);
    }
    for (auto it = active_.rbegin(); it != active_.rend(); ++it)
      SG_RETURN_IF_ERROR(Backward(*it));
    // Leaves that nothing uses.
    for (size_t i = 0; i < options_.leaves.size(); ++i)
      if (last_use_[i] == kNone) SG_RETURN_IF_ERROR(Consume(i));
    return absl::OkStatus();
  }

 private:
  class Context;

  bool Needs(ValueId value) const {
    const Value& v = graph_.values[value];
    return IsFloating(v.type.dtype) && needs_.Overlaps(v);
  }
  bool AnyOperandNeeds(const Node& node) const {
    return std::any_of(node.operands.begin(), node.operands.end(),
                       [&](ValueId v) { return Needs(v); });
  }
  std::string Describe(NodeId id) const { return PrintNode(graph_, id); }

  // Forward: what depends on a leaf.
  absl::Status FindNeeds() {
    for (const GradientLeaf& leaf : options_.leaves)
      needs_.Add(graph_.values[leaf.value]);
    int losses = 0;
    for (NodeId id : program_) {
      const Node& node = graph_.nodes[id];
      if (!AnyOperandNeeds(node)) continue;
      const GradientRule* rule = FindGradientRule(node.op->name);
      if (rule != nullptr && rule->is_loss) {
        ++losses;
        continue;
      }
      if (rule != nullptr && rule->apply == nullptr) continue;
      for (size_t r = 0; r < node.results.size(); ++r) {
        const int tied =
            TiedOperand(*node.op, node.attributes, node.operands.size(),
                        node.results.size(), r);
        if (tied >= 0) {
          return absl::UnimplementedError(
              absl::StrCat("no gradient through a node that updates in place: ",
                           Describe(id)));
        }
        if (IsFloating(builder_.type(node.results[r]).dtype))
          needs_.Add(graph_.values[node.results[r]]);
      }
    }
    if (losses > 1) {
      return absl::UnimplementedError(absl::StrCat(
          "phase ", graph_.phases[builder_.phase()].name, " has ", losses,
          " losses, there must be one; add them up in one op"));
    }
    if (losses == 0 && options_.seeds.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("phase ", graph_.phases[builder_.phase()].name,
                       " has no loss that depends on a trainable parameter"));
    }
    return absl::OkStatus();
  }

  // Backward: what the loss depends on, and through which views.
  absl::Status FindActive() {
    ByteSet wanted;
    for (const GradientBase& base : options_.bases) {
      if (!Needs(base.value)) continue;
      slots_.AddBase(base);
      wanted.Add(graph_.values[base.value]);
    }
    std::map<BufferId, std::vector<size_t>> leaves_of;
    for (size_t i = 0; i < options_.leaves.size(); ++i) {
      slots_.AddLeaf(options_.leaves[i].value);
      leaves_of[graph_.values[options_.leaves[i].value].buffer].push_back(i);
    }
    last_use_.assign(options_.leaves.size(), kNone);
    for (const GradientSeed& seed : options_.seeds) {
      if (!Needs(seed.value)) continue;
      slots_.AddUse(seed.value);
      wanted.Add(graph_.values[seed.value]);
    }
    bool later = !options_.seeds.empty();
    for (auto it = program_.rbegin(); it != program_.rend(); ++it) {
      const NodeId id = *it;
      const Node& node = graph_.nodes[id];
      if (!AnyOperandNeeds(node)) continue;
      const GradientRule* rule = FindGradientRule(node.op->name);
      if (rule != nullptr && rule->apply == nullptr) continue;
      const bool is_loss = rule != nullptr && rule->is_loss;
      const bool is_wanted = std::any_of(
          node.results.begin(), node.results.end(),
          [&](ValueId v) { return wanted.Overlaps(graph_.values[v]); });
      if (!is_loss && !is_wanted) continue;
      if (rule == nullptr) {
        return absl::UnimplementedError(
            absl::StrCat("op ", std::string(node.op->name),
                         " has no gradient rule: ", Describe(id)));
      }
      // Its gradient stands in its place: nothing may contribute before.
      if (is_loss && later) {
        return absl::UnimplementedError(absl::StrCat(
            "the loss must be the last node that is differentiated: ",
            Describe(id)));
      }
      later = true;
      active_.push_back(id);
      for (ValueId v : node.operands) {
        if (!Needs(v)) continue;
        const Value& value = graph_.values[v];
        wanted.Add(value);
        slots_.AddUse(v);
        const auto leaves = leaves_of.find(value.buffer);
        if (leaves == leaves_of.end()) continue;
        for (size_t leaf : leaves->second) {
          const Value& l = graph_.values[options_.leaves[leaf].value];
          if (l.begin() < value.end() && value.begin() < l.end())
            last_use_[leaf] = id;
        }
      }
      if (is_loss) continue;
      for (ValueId v : node.results)
        if (wanted.Overlaps(graph_.values[v])) slots_.AddResult(v, id);
    }
    std::reverse(active_.begin(), active_.end());
    return absl::OkStatus();
  }

  absl::Status Backward(NodeId id);
  void ReplaceNode(const Node& node, NodeId id,
                   absl::Span<const ValueId> replacements);

  absl::Status Consume(size_t leaf) {
    ValueId gradient;
    SG_RETURN_IF_ERROR(slots_.Complete(options_.leaves[leaf].value, &gradient));
    options_.leaves[leaf].consume(gradient);
    return absl::OkStatus();
  }

  GraphBuilder& builder_;
  Graph& graph_;
  const DifferentiateOptions& options_;
  GradientSlots slots_;
  std::vector<NodeId> program_;   // before backward
  ByteSet needs_;                 // depends on a leaf
  std::vector<NodeId> active_;    // and the loss depends on it; program order
  std::vector<NodeId> last_use_;  // per leaf: the first node that uses it
};

class Differentiator::Context final : public GradientContext {
 public:
  Context(Differentiator& d, const Node& node, bool is_loss)
      : d_(d), node_(node), is_loss_(is_loss) {}

  absl::Status Complete() {
    for (ValueId result : node_.results) {
      gradients_.push_back(kNone);
      if (!is_loss_)
        SG_RETURN_IF_ERROR(d_.slots_.Complete(result, &gradients_.back()));
    }
    return absl::OkStatus();
  }
  bool HasGradient() const {
    return std::any_of(gradients_.begin(), gradients_.end(),
                       [](ValueId g) { return g != kNone; });
  }
  absl::Span<const ValueId> replacements() const { return replacements_; }

  GraphBuilder& builder() override { return d_.builder_; }
  const Node& node() const override { return node_; }
  ValueId gradient(int i) override { return gradients_[i]; }
  bool needs(int i) const override { return d_.Needs(node_.operands[i]); }
  DType gradient_dtype(int i) const override {
    return d_.slots_.dtype(node_.operands[i]);
  }

  absl::InlinedVector<ValueId, 4> Emit(
      absl::string_view op, absl::Span<const ValueId> operands,
      Attributes attributes, absl::Span<const int> contributes) override {
    absl::InlinedVector<ValueId, 4> targets;
    for (int i : contributes)
      targets.push_back(i != kNone && needs(i) ? node_.operands[i] : kNone);
    // What a loss op and its gradient both yield stays where it is, so that
    // views of it stay valid.
    std::vector<Placement> places;
    if (is_loss_) {
      for (size_t r = 0; r < contributes.size(); ++r) {
        if (contributes[r] != kNone || r >= node_.results.size()) {
          places.emplace_back();
          continue;
        }
        const Value& value = d_.graph_.values[node_.results[r]];
        places.push_back(Placement{value.buffer, value.offset, value.type});
      }
    }
    return d_.slots_.Emit(op, operands, std::move(attributes), targets, places);
  }

  void Contribute(int i, ValueId gradient) override {
    if (needs(i)) d_.slots_.Contribute(node_.operands[i], gradient);
  }

  void Replace(absl::Span<const ValueId> replacements) override {
    SG_CHECK(is_loss_) << std::string(node_.op->name) << " is no loss";
    replacements_.assign(replacements.begin(), replacements.end());
  }

 private:
  Differentiator& d_;
  const Node& node_;
  const bool is_loss_;
  std::vector<ValueId> gradients_;
  std::vector<ValueId> replacements_;
};

absl::Status Differentiator::Backward(NodeId id) {
  const Node node = graph_.nodes[id];  // nodes move as others are added
  const GradientRule& rule = *FindGradientRule(node.op->name);
  builder_.TakeAnnotations(node);
  if (rule.is_loss) {
    std::vector<NodeId>& nodes = graph_.phases[builder_.phase()].nodes;
    const auto at = std::find(nodes.begin(), nodes.end(), id);
    const int64_t position = at - nodes.begin();
    nodes.erase(at);
    builder_.SetInsertionPoint(position);
  }
  Context context(*this, node, rule.is_loss);
  SG_RETURN_IF_ERROR(context.Complete());
  if (rule.is_loss || context.HasGradient()) {
    const absl::Status status = rule.apply(context);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(status.message(), ": ", Describe(id)));
    }
  }
  if (rule.is_loss) {
    ReplaceNode(node, id, context.replacements());
    builder_.SetInsertionPoint(kNone);
  }
  for (ValueId result : node.results) slots_.ProducerDone(result, id);
  for (size_t i = 0; i < last_use_.size(); ++i)
    if (last_use_[i] == id) SG_RETURN_IF_ERROR(Consume(i));
  return absl::OkStatus();
}

void Differentiator::ReplaceNode(const Node& node, NodeId id,
                                 absl::Span<const ValueId> replacements) {
  SG_CHECK_EQ(replacements.size(), node.results.size())
      << "the rule of " << std::string(node.op->name)
      << " replaces each of its results";
  for (size_t r = 0; r < replacements.size(); ++r) {
    const ValueId old = node.results[r], now = replacements[r];
    const Value& value = graph_.values[now];
    SG_CHECK(value.buffer == graph_.values[old].buffer &&
             value.offset == graph_.values[old].offset)
        << "a replacement lies where its result was";
    const NodeId producer = value.producer;
    for (Value& v : graph_.values) {
      if (v.base == old) v.base = now;
      if (v.producer == id) v.producer = producer;
    }
    for (NodeId n : graph_.phases[builder_.phase()].nodes) {
      for (ValueId& operand : graph_.nodes[n].operands)
        if (operand == old) operand = now;
    }
    for (auto* names : {&graph_.inputs, &graph_.outputs}) {
      for (auto& [name, named] : *names)
        if (named == old) named = now;
    }
  }
}

}  // namespace

absl::Status Differentiate(GraphBuilder& builder,
                           const DifferentiateOptions& options) {
  const std::string scope(builder.scope());
  const UnitId unit = builder.unit();
  const Direction direction = builder.direction();
  const bool rematerialize = builder.rematerialize();
  builder.SetDirection(Direction::kBackward);
  builder.SetRematerialize(false);
  const absl::Status status = Differentiator(builder, options).Run();
  builder.SetInsertionPoint(kNone);
  builder.SetScope(scope);
  builder.SetUnit(unit);
  builder.SetDirection(direction);
  builder.SetRematerialize(rematerialize);
  return status;
}

}  // namespace shardgraph
