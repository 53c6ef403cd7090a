#include "graph/builder.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/op_table.h"

namespace shardgraph {

GraphBuilder::GraphBuilder(Graph* graph) : graph_(graph) {
  for (const Buffer& buffer : graph->buffers) ++names_[buffer.name];
  for (size_t i = 0; i < graph->scopes.size(); ++i)
    scope_ids_.emplace(graph->scopes[i], static_cast<int32_t>(i));
  for (size_t p = 0; p < graph->phases.size(); ++p) {
    for (NodeId id : graph->phases[p].nodes) {
      for (ValueId result : graph->nodes[id].results) {
        const Value& value = graph->values[result];
        writers_[{static_cast<PhaseId>(p), value.buffer}].push_back(
            {value.begin(), value.end(), id});
      }
    }
  }
}

PhaseId GraphBuilder::SetPhase(absl::string_view name) {
  phase_ = graph_->FindPhase(name);
  if (phase_ == kNone) {
    phase_ = static_cast<PhaseId>(graph_->phases.size());
    graph_->phases.push_back(Phase{std::string(name), {}});
  }
  insertion_ = kNone;
  return phase_;
}

UnitId GraphBuilder::AddUnit(absl::string_view name) {
  graph_->units.push_back(UnitInfo{std::string(name)});
  return static_cast<UnitId>(graph_->units.size() - 1);
}

void GraphBuilder::SetScope(absl::string_view scope) {
  if (scope_ != kNone && graph_->scopes[scope_] == scope) return;
  auto it = scope_ids_.find(std::string(scope));
  if (it == scope_ids_.end()) {
    graph_->scopes.emplace_back(scope);
    it = scope_ids_
             .emplace(scope, static_cast<int32_t>(graph_->scopes.size() - 1))
             .first;
  }
  scope_ = it->second;
}

absl::string_view GraphBuilder::scope() const {
  return scope_ == kNone ? absl::string_view()
                         : absl::string_view(graph_->scopes[scope_]);
}

void GraphBuilder::TakeAnnotations(const Node& node) {
  scope_ = node.scope;
  unit_ = node.unit;
}

BufferId GraphBuilder::AddBuffer(Buffer buffer) {
  int& uses = names_[buffer.name];
  if (++uses > 1) buffer.name = absl::StrCat(buffer.name, "#", uses);
  graph_->buffers.push_back(std::move(buffer));
  return static_cast<BufferId>(graph_->buffers.size() - 1);
}

ValueId GraphBuilder::AddValue(Value value) {
  graph_->values.push_back(std::move(value));
  return static_cast<ValueId>(graph_->values.size() - 1);
}

ValueId GraphBuilder::External(BufferId buffer, const TensorType& type,
                               int64_t offset) {
  Value value;
  value.buffer = buffer;
  value.offset = offset;
  value.type = type;
  SG_CHECK(value.begin() >= 0 && value.end() <= graph_->buffers[buffer].bytes)
      << graph_->buffers[buffer].name << " has "
      << graph_->buffers[buffer].bytes << " bytes; " << type.ToString()
      << " at " << offset << " does not fit";
  return AddValue(std::move(value));
}

ValueId GraphBuilder::Input(absl::string_view name, const TensorType& type) {
  const auto it = graph_->inputs.find(std::string(name));
  if (it != graph_->inputs.end()) {
    SG_CHECK(graph_->values[it->second].type == type)
        << "input " << std::string(name) << " is "
        << graph_->values[it->second].type.ToString() << ", asked for as "
        << type.ToString();
    return it->second;
  }
  Buffer buffer;
  buffer.name = absl::StrCat("input/", name);
  buffer.bytes = type.span_bytes();
  buffer.lifetime = Lifetime::kRun;
  buffer.kind = MemoryKind::kInput;
  const ValueId value = External(AddBuffer(std::move(buffer)), type);
  graph_->inputs.emplace(name, value);
  return value;
}

BufferId GraphBuilder::state_buffer() {
  const BufferId found = graph_->FindBuffer("step_state");
  if (found != kNone) return found;
  Buffer buffer;
  buffer.name = "step_state";
  buffer.bytes = sizeof(StepState);
  buffer.lifetime = Lifetime::kRun;
  buffer.kind = MemoryKind::kState;
  return AddBuffer(std::move(buffer));
}

ValueId GraphBuilder::StateField(int64_t offset, const TensorType& type) {
  return Current(state_buffer(), type, offset);
}

ValueId GraphBuilder::Current(BufferId buffer, const TensorType& type,
                              int64_t offset) {
  const ValueId id = External(buffer, type, offset);
  Value& value = graph_->values[id];
  // Only writes of this phase count: another phase's program is not part of
  // this one's order.
  const auto [begin, end] = std::pair(value.begin(), value.end());
  const auto& writers = writers_[{phase_, buffer}];
  for (const auto& [writer_begin, writer_end, node] : writers) {
    if (writer_begin < end && begin < writer_end) {
      value.producer = node;
      ++value.version;
    }
  }
  return id;
}

ValueId GraphBuilder::View(ValueId base, int64_t offset, Dims shape,
                           Dims strides) {
  const Value& from = graph_->values[base];
  Value view;
  view.buffer = from.buffer;
  view.offset = from.offset + offset * SizeOf(from.type.dtype);
  view.type = TensorType(from.type.dtype, std::move(shape), std::move(strides));
  view.producer = from.producer;
  view.base = base;
  view.version = from.version;
  SG_CHECK(view.begin() >= from.begin() && view.end() <= from.end())
      << "view " << view.type.ToString() << " at element " << offset
      << " leaves " << from.type.ToString() << " in " << std::string(scope());
  return AddValue(std::move(view));
}

ValueId GraphBuilder::Reshape(ValueId base, Dims shape) {
  const TensorType& from = type(base);
  SG_CHECK(from.contiguous() && NumElements(shape) == from.num_elements())
      << "cannot see " << from.ToString() << " as ["
      << absl::StrJoin(shape, ",") << "] in " << std::string(scope());
  Dims strides = ContiguousStrides(shape);
  return View(base, 0, std::move(shape), std::move(strides));
}

ValueId GraphBuilder::Slice(ValueId base, int dim, int64_t begin, int64_t end) {
  const TensorType from = type(base);
  SG_CHECK(dim >= 0 && dim < from.rank() && 0 <= begin && begin <= end &&
           end <= from.shape[dim])
      << "slice [" << begin << ", " << end << ") of dimension " << dim << " of "
      << from.ToString();
  Dims shape = from.shape;
  shape[dim] = end - begin;
  return View(base, begin * from.strides[dim], std::move(shape), from.strides);
}

absl::InlinedVector<ValueId, 4> GraphBuilder::Emit(
    absl::string_view op_name, absl::Span<const ValueId> operands,
    Attributes attributes, absl::Span<const Placement> placements) {
  const OpDef* op = FindOp(op_name);
  SG_CHECK(op != nullptr) << "there is no op " << std::string(op_name);
  SG_CHECK(phase_ != kNone)
      << "no phase to add " << std::string(op_name) << " to";

  std::vector<TensorType> operand_types;
  operand_types.reserve(operands.size());
  for (ValueId id : operands) operand_types.push_back(type(id));
  std::vector<TensorType> types;
  const absl::Status inferred =
      InferResults(*op, attributes, operand_types, &types);
  SG_CHECK(inferred.ok()) << std::string(inferred.message()) << "; in "
                          << std::string(scope()) << " with operands "
                          << absl::StrJoin(
                                 operand_types, ", ",
                                 [](std::string* out, const TensorType& type) {
                                   absl::StrAppend(out, type.ToString());
                                 });

  Node node;
  node.op = op;
  node.operands.assign(operands.begin(), operands.end());
  node.scope = scope_;
  node.unit = unit_;
  node.phase = phase_;
  node.direction = direction_;
  node.lane = op->lane;
  const NodeId id = static_cast<NodeId>(graph_->nodes.size());
  for (size_t r = 0; r < types.size(); ++r) {
    Value value;
    value.producer = id;
    const int tied =
        TiedOperand(*op, attributes, operands.size(), types.size(), r);
    if (tied >= 0) {
      const Value& operand = graph_->values[operands[tied]];
      value.buffer = operand.buffer;
      value.offset = operand.offset;
      value.type = operand.type;
      value.version = operand.version + 1;
    } else if (r < placements.size() && placements[r].buffer != kNone) {
      const Placement& placement = placements[r];
      SG_CHECK(placement.type.dtype == types[r].dtype &&
               placement.type.shape == types[r].shape)
          << std::string(op_name) << ": result " << r << " is "
          << types[r].ToString() << ", its place is "
          << placement.type.ToString() << "; in " << std::string(scope());
      SG_CHECK(placement.type.contiguous() || (op->strided_results >> r & 1))
          << std::string(op_name) << ": result " << r
          << " must be contiguous, its place is " << placement.type.ToString()
          << "; in " << std::string(scope());
      value.buffer = placement.buffer;
      value.offset = placement.offset;
      value.type = placement.type;
      SG_CHECK(value.begin() >= 0 &&
               value.end() <= graph_->buffers[value.buffer].bytes)
          << std::string(op_name) << ": result " << r << " leaves the buffer "
          << graph_->buffers[value.buffer].name;
    } else {
      Buffer buffer;
      buffer.name = absl::StrCat(scope(), "/", op_name);
      if (types.size() > 1) absl::StrAppend(&buffer.name, ".", r);
      buffer.bytes = types[r].num_elements() * SizeOf(types[r].dtype);
      buffer.rematerialize = rematerialize_;
      value.buffer = AddBuffer(std::move(buffer));
      value.type = types[r];
    }
    writers_[{phase_, value.buffer}].push_back(
        {value.begin(), value.end(), id});
    node.results.push_back(AddValue(std::move(value)));
  }
  node.attributes = std::move(attributes);
  absl::InlinedVector<ValueId, 4> results = node.results;
  graph_->nodes.push_back(std::move(node));
  std::vector<NodeId>& program = graph_->phases[phase_].nodes;
  if (insertion_ == kNone) {
    program.push_back(id);
  } else {
    program.insert(program.begin() + insertion_++, id);
  }
  return results;
}

ValueId GraphBuilder::Emit1(absl::string_view op,
                            std::initializer_list<ValueId> operands,
                            Attributes attributes, Placement placement) {
  const auto results =
      Emit(op, absl::MakeConstSpan(operands.begin(), operands.size()),
           std::move(attributes), absl::MakeConstSpan(&placement, 1));
  SG_CHECK(results.size() == 1)
      << std::string(op) << " has " << results.size() << " results";
  return results[0];
}

}  // namespace shardgraph
