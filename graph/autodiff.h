// Differentiate: appends the backward nodes of a phase.
//
// Works on byte ranges as the IR does: the gradient of a value that is used
// through views is one buffer, and the gradients of the views are written
// straight into views of it (members of a flat parameter, q, k and v of one
// product). The first contribution to a range writes, later ones accumulate, in
// the reverse of program order of their uses: fixed, the same on every rank.
// Where an op cannot accumulate in place, an `add` does.
//
// Rules (graph/gradients/<family>.cc) name operands, results and declared
// residuals, never kernel state.
#ifndef GRAPH_AUTODIFF_H_
#define GRAPH_AUTODIFF_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "graph/builder.h"
#include "graph/graph.h"

namespace shardgraph {

// A value whose gradient is wanted.
struct GradientLeaf {
  ValueId value = kNone;
  // Called once, when all contributions are in, with the gradient; emits what
  // becomes of it (accumulate into a shard). The builder's annotations are
  // those of the node that used the leaf.
  std::function<void(ValueId gradient)> consume;
};

// A value whose gradient has a dtype or memory kind of its own, and parts that
// must not stay without a contribution: a gathered flat parameter. Bytes
// outside `required` are padding: never written. An empty `required` means all
// of the value, under the name of its buffer. May be a leaf at the same time
// (nothing is gathered in a group of one).
struct GradientBase {
  struct Range {
    std::string name;    // parameter name, for the error
    int64_t offset = 0;  // elements
    int64_t elements = 0;
  };
  ValueId value = kNone;
  DType dtype = DType::kF32;
  MemoryKind kind = MemoryKind::kGradient;
  int64_t alignment = 256;
  std::vector<Range> required;
};

// A gradient that comes from elsewhere: backward starts at `value` too.
struct GradientSeed {
  ValueId value = kNone;
  ValueId gradient = kNone;  // of the same type; only read
};

struct DifferentiateOptions {
  std::vector<GradientLeaf> leaves;
  std::vector<GradientBase> bases;
  std::vector<GradientSeed> seeds;
  // A parameter without any contribution: filled with zero if true, else
  // FailedPrecondition naming it and the remedy.
  bool zero_unused = false;
};

// Differentiates the nodes that the builder's current phase holds so far. Loss
// ops (cross_entropy_head) are where backward starts: their forward nodes are
// replaced by those that compute loss and gradient at once; results of the old
// node keep their place, readers and names are redirected.
//
// Unimplemented, naming the node: an op without a rule or an update in place
// between a leaf and the loss, more than one loss, a loss that is not the last
// node to differentiate. FailedPrecondition: no loss, an unused parameter.
absl::Status Differentiate(GraphBuilder& builder,
                           const DifferentiateOptions& options);

// What a gradient rule sees of the node it differentiates.
class GradientContext {
 public:
  virtual ~GradientContext() = default;

  virtual GraphBuilder& builder() = 0;
  virtual const Node& node() const = 0;
  ValueId operand(int i) const { return node().operands[i]; }
  ValueId result(int i) const { return node().results[i]; }
  // Gradient of result i, complete; kNone when nothing contributed to it.
  virtual ValueId gradient(int i) = 0;
  // Whether operand i needs a gradient.
  virtual bool needs(int i) const = 0;
  // Dtype in which the gradient of operand i is kept (that of the operand, but
  // for a GradientBase's).
  virtual DType gradient_dtype(int i) const = 0;
  // Emits `op` and takes its result r as a contribution to the gradient of
  // operand `contributes[r]` of node() (kNone: not a contribution). Decides
  // placement and accumulation.
  virtual absl::InlinedVector<ValueId, 4> Emit(
      absl::string_view op, absl::Span<const ValueId> operands,
      Attributes attributes, absl::Span<const int> contributes) = 0;
  // Takes an existing value as the contribution to operand i (of `add`: the
  // gradient passes through).
  virtual void Contribute(int i, ValueId gradient) = 0;
  // Makes node() disappear: its result i is `replacements[i]` from now on (loss
  // ops).
  virtual void Replace(absl::Span<const ValueId> replacements) = 0;
};

struct GradientRule {
  absl::string_view op;
  absl::Status (*apply)(GradientContext& context) =
      nullptr;           // null: no gradient flows through (ids, positions)
  bool is_loss = false;  // backward starts here
};

// Null when the op has no rule.
const GradientRule* FindGradientRule(absl::string_view op);
// One list per family: graph/gradients/<family>.cc.
absl::Span<const absl::Span<const GradientRule>> AllGradientRules();

}  // namespace shardgraph

#endif  // GRAPH_AUTODIFF_H_
