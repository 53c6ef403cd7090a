// Graph: the training step as data. Values are typed views of buffers, nodes
// are op instances, phases are programs over one set of buffers.
//
// Meaning. A node reads the bytes of its operands and writes the bytes of its
// results. Within a phase, program order (Phase::nodes) defines the meaning;
// passes may reorder only what the byte ranges allow. Phases run one after
// another, each as often as the caller likes. At the start of a phase a
// run-lifetime buffer holds what was last written to it by any phase, a
// step-lifetime buffer likewise within the step; a phase-lifetime buffer holds
// nothing.
//
// Versions. A result may share the bytes of an operand (kernels/op.h: in_place,
// accumulate): it is the next version of that range, and nothing reads the old
// one after it. Several nodes may write disjoint views of one buffer (gradients
// of q, k and v into one buffer, members of a flat gradient): Value::producer
// is then the last of them.
//
// Rank independence. Nothing here depends on the rank. Collectives name a
// group; kernels learn their rank in prepare.
//
// Ids are dense indices. Nodes are only made through GraphBuilder. Not
// thread-safe while it is being built.
#ifndef GRAPH_GRAPH_H_
#define GRAPH_GRAPH_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "kernels/attributes.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shardgraph {

using BufferId = int32_t;
using ValueId = int32_t;
using NodeId = int32_t;
using PhaseId = int32_t;
using UnitId = int32_t;
inline constexpr int32_t kNone = -1;

// How long the bytes of a buffer are kept.
enum class Lifetime : uint8_t {
  kRun,    // for good: parameters, optimizer state, step state, inputs, caches
  kStep,   // over the phases of one step: gradient shards from `micro` to
           // `update`
  kPhase,  // within one run of one phase
};

// What a buffer is for: the rows of the memory report.
enum class MemoryKind : uint8_t {
  kMasterParameter,    // FP32 shard
  kComputeParameter,   // shard in the compute dtype, what is gathered
  kOptimizerState,     // moments, shard
  kGradientShard,      // accumulated over micro-batches, shard
  kGatheredParameter,  // one unit's parameters, whole
  kGradient,           // one unit's gradient, whole
  kReduceStage,        // what a reduction yields before it is accumulated
  kActivation,         // saved or passing through, and its gradient
  kInput,              // batch tensors
  kState,              // StepState, norms
  kCache,              // keys and values of generation
  kWorkspace,          // scratch of one node
};
absl::string_view MemoryKindName(MemoryKind kind);
inline constexpr int kNumMemoryKinds =
    static_cast<int>(MemoryKind::kWorkspace) + 1;

struct Buffer {
  std::string name;  // unique, printable: "transformer.h.0/gathered",
                     // "transformer.h.0.mlp/gelu.y"
  int64_t bytes = 0;
  int64_t alignment = 256;
  Lifetime lifetime = Lifetime::kPhase;
  MemoryKind kind = MemoryKind::kActivation;
  // Made again for backward by running its producers once more, instead of
  // being kept from forward: a gathered parameter that is resharded after
  // forward, an activation that is recomputed.
  bool rematerialize = false;
};

struct Value {
  BufferId buffer = kNone;
  int64_t offset = 0;  // bytes from the start of the buffer
  TensorType type;
  NodeId producer = kNone;  // the node that wrote it (the last, for several
                            // disjoint views); kNone: there at phase start
  ValueId base =
      kNone;            // the value that this is a view of; kNone if it is none
  int32_t version = 0;  // how often its bytes were written before in this phase

  int64_t begin() const { return offset; }
  int64_t end() const {
    return offset + type.span_bytes();
  }  // gaps of a strided view included
};

// Part of the step a node belongs to; for schedules, reports and ranges of
// traces.
enum class Direction : uint8_t { kForward, kRecompute, kBackward, kUpdate };
absl::string_view DirectionName(Direction direction);

struct Node {
  const OpDef* op = nullptr;
  Attributes attributes;
  absl::InlinedVector<ValueId, 6> operands;
  absl::InlinedVector<ValueId, 4> results;
  BufferId workspace = kNone;  // set by Lower
  int32_t scope = kNone;       // index into Graph::scopes
  UnitId unit = kNone;         // index into Graph::units
  PhaseId phase = kNone;
  Direction direction = Direction::kForward;
  LaneKind lane = LaneKind::kCompute;
};

struct Phase {
  std::string name;  // "micro", "update", "eval", "prefill", "decode"; buckets
                     // of lengths as "micro@512"
  std::vector<NodeId> nodes;
};

// A wrapped module, as far as passes that know no sharding need it: what
// gathers, schedules and reports refer to.
struct UnitInfo {
  std::string name;  // module name; "" is the root
};

// The ranks r of a group of `size`: first + k * stride, where first = the
// member with k = 0. For any rank R, k = (R / stride) % size and first = R - k
// * stride. "world" is {W, 1}; HYBRID has "shard" {S, 1}, "replicate" {R, S}.
struct Group {
  std::string name;
  int32_t size = 1;
  int32_t stride = 1;
};

struct Graph {
  // Out of line: every file with a graph would compile them again.
  Graph();
  Graph(const Graph& other);
  Graph(Graph&& other) noexcept;
  Graph& operator=(const Graph& other);
  Graph& operator=(Graph&& other) noexcept;
  ~Graph();

  std::vector<Buffer> buffers;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<Phase> phases;
  std::vector<std::string> scopes;  // "model.layers.3.mlp"
  std::vector<UnitInfo> units;
  std::vector<Group> groups;
  // Named values: "tokens", "targets", "step_state/loss_sum", "logits", ... The
  // host looks them up once, in Prepare.
  std::map<std::string, ValueId> inputs;
  std::map<std::string, ValueId> outputs;

  const Value& value(ValueId id) const { return values[id]; }
  const Node& node(NodeId id) const { return nodes[id]; }
  const Buffer& buffer_of(ValueId id) const {
    return buffers[values[id].buffer];
  }
  absl::string_view scope_of(const Node& node) const {
    return node.scope == kNone ? absl::string_view()
                               : absl::string_view(scopes[node.scope]);
  }
  BufferId FindBuffer(absl::string_view name) const;  // kNone when absent
  PhaseId FindPhase(absl::string_view name) const;    // kNone when absent
  const Group* FindGroup(absl::string_view name) const;

  // Types of a node's operands or results.
  std::vector<TensorType> OperandTypes(const Node& node) const;
  std::vector<TensorType> ResultTypes(const Node& node) const;
};

// The byte ranges a node touches: each operand (read), each result (written; a
// tied result is also read through its operand), the workspace (written). The
// one place that says what conflicts; all of it in terms of buffers.
struct Access {
  BufferId buffer;
  int64_t begin;
  int64_t end;
  bool write;
};
void AppendAccesses(const Graph& graph, const Node& node,
                    std::vector<Access>* accesses);

// Text of the graph or of one node, stable, for golden tests, messages and
// hashes:
//   "%12 = matmul(%7, %9) transpose_b=1 : BF16[6,36] @model.layers.0.mlp
//   backward"
std::string PrintNode(const Graph& graph, NodeId id);
std::string PrintGraph(const Graph& graph);

}  // namespace shardgraph

#endif  // GRAPH_GRAPH_H_
