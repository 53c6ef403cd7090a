// GraphBuilder: the only way to make nodes. Checks operands, infers types,
// places results.
//
// It carries the annotations that new nodes get (phase, scope, unit, direction)
// and the memory kind that their fresh results get. A type error is an
// invariant violation (the process ends with op, operands and scope): whoever
// emits has validated the config before.
#ifndef GRAPH_BUILDER_H_
#define GRAPH_BUILDER_H_

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/graph.h"
#include "kernels/attributes.h"
#include "kernels/step_state.h"
#include "kernels/tensor.h"

namespace shardgraph {

// Where a result is to be written, instead of a fresh buffer.
struct Placement {
  BufferId buffer = kNone;  // kNone: fresh
  int64_t offset = 0;       // bytes
  TensorType type;          // dtype and shape as inferred; strides as wanted
};

class GraphBuilder {
 public:
  // `graph` outlives the builder. Several builders may work on one graph, one
  // after another: a later one knows the nodes that are there.
  explicit GraphBuilder(Graph* graph);

  Graph& graph() { return *graph_; }
  const Graph& graph() const { return *graph_; }
  const TensorType& type(ValueId value) const {
    return graph_->values[value].type;
  }

  // --- Phases and annotations
  // -------------------------------------------------------------------------------------
  // Makes `name` the phase that nodes are appended to; new if there is none of
  // that name.
  PhaseId SetPhase(absl::string_view name);
  PhaseId phase() const { return phase_; }
  UnitId AddUnit(absl::string_view name);
  void SetUnit(UnitId unit) { unit_ = unit; }
  UnitId unit() const { return unit_; }
  void SetDirection(Direction direction) { direction_ = direction; }
  Direction direction() const { return direction_; }
  void SetScope(absl::string_view scope);
  absl::string_view scope() const;
  // Copies scope and unit of an existing node: its gradient and its
  // recomputation belong to the same module.
  void TakeAnnotations(const Node& node);
  // Whether fresh results are recomputed for backward (Buffer::rematerialize).
  void SetRematerialize(bool rematerialize) { rematerialize_ = rematerialize; }
  bool rematerialize() const { return rematerialize_; }
  // New nodes go before the node at `position` of the current phase's program
  // (kNone: at the end); advances as nodes are added.
  void SetInsertionPoint(int64_t position) { insertion_ = position; }

  // --- Memory
  // -------------------------------------------------------------------------------------------------------
  // Names are made unique by a suffix.
  BufferId AddBuffer(Buffer buffer);
  // What the buffer holds at the start of the current phase, seen as `type` at
  // `offset`.
  ValueId External(BufferId buffer, const TensorType& type, int64_t offset = 0);
  // A buffer of its own for batch tensors, run lifetime, listed in
  // Graph::inputs under `name`; found again on a second call with the same name
  // and type.
  ValueId Input(absl::string_view name, const TensorType& type);
  // A field of StepState, as it is at this point of the phase: `ValueId lr =
  // StateField(offsetof(StepState, learning_rate), TensorType(DType::kF32,
  // {8}))`. The struct's buffer is made on first use.
  ValueId StateField(int64_t offset, const TensorType& type);
  BufferId state_buffer();
  // The value of a range as the nodes so far have left it (after several nodes
  // wrote views of it).
  ValueId Current(BufferId buffer, const TensorType& type, int64_t offset);

  // --- Views: no node, no bytes
  // ---------------------------------------------------------------------------------------
  // `offset` and strides in elements of `base`; must lie inside base's span.
  ValueId View(ValueId base, int64_t offset, Dims shape, Dims strides);
  ValueId Reshape(ValueId base, Dims shape);  // of a contiguous value
  ValueId Slice(ValueId base, int dim, int64_t begin,
                int64_t end);  // keeps the other dimensions

  // --- Nodes
  // ------------------------------------------------------------------------------------------------------------
  // Appends a node; returns its results. `placements` may be shorter than the
  // results; tied results need none.
  absl::InlinedVector<ValueId, 4> Emit(
      absl::string_view op, absl::Span<const ValueId> operands,
      Attributes attributes = {}, absl::Span<const Placement> placements = {});
  // The same for ops with one result.
  ValueId Emit1(absl::string_view op, std::initializer_list<ValueId> operands,
                Attributes attributes = {}, Placement placement = {});

 private:
  struct Writer {
    int64_t begin;
    int64_t end;
    NodeId node;
  };

  ValueId AddValue(Value value);

  Graph* graph_;
  std::map<std::pair<PhaseId, BufferId>, std::vector<Writer>>
      writers_;  // program order
  std::map<std::string, int> names_;
  std::map<std::string, int32_t> scope_ids_;
  PhaseId phase_ = kNone;
  UnitId unit_ = kNone;
  int32_t scope_ = kNone;
  Direction direction_ = Direction::kForward;
  bool rematerialize_ = false;
  int64_t insertion_ = kNone;
};

}  // namespace shardgraph

#endif  // GRAPH_BUILDER_H_
