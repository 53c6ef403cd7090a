#include "graph/fusion.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/builder.h"
#include "graph/passes.h"
#include "gtest/gtest.h"
#include "kernels/op_table.h"

namespace shardgraph {
namespace {

// Structure only: the ops need not compute the same.
constexpr FusionPattern kChain = {.name = "chain",
                                  .replaces = "s = add(a, b); y = relu(s)",
                                  .by = "y = swiglu(a, b)"};
constexpr FusionPattern kSum = {.name = "sum",
                                .replaces = "y = relu(x); c = column_sum(y)",
                                .by = "c = column_sum(x)"};
constexpr FusionPattern kShared = {.name = "shared",
                                   .replaces = "*r = relu(x); y = add(r, z)",
                                   .by = "y = swiglu(x, z)"};

constexpr FusionPattern kSharedChain = {
    .name = "shared chain",
    .replaces = "*r = relu(x); s = add(r, z); y = silu(s)",
    .by = "y = swiglu(x, z)"};

class FusionTest : public ::testing::Test {
 protected:
  FusionTest() : b_(&graph_) {
    b_.SetPhase("p");
    x_ = b_.Input("x", type_);
    z_ = b_.Input("z", type_);
  }

  std::vector<std::string> Ops() const {
    std::vector<std::string> ops;
    for (NodeId id : graph_.phases[0].nodes)
      ops.push_back(std::string(graph_.nodes[id].op->name));
    return ops;
  }
  using Names = std::vector<std::string>;

  BufferId AddBuffer(int64_t bytes) {
    Buffer buffer;
    buffer.name = "buffer";
    buffer.bytes = bytes;
    return b_.AddBuffer(buffer);
  }
  Node& ProducerOf(ValueId value) {
    return graph_.nodes[graph_.values[value].producer];
  }

  const TensorType type_{DType::kF32, {2, 3}};
  Graph graph_;
  GraphBuilder b_;
  ValueId x_, z_;
};

TEST_F(FusionTest, ReplacesAChain) {
  const ValueId sum = b_.Emit1("add", {x_, z_});
  const ValueId y = b_.Emit1("relu", {sum});
  const ValueId view = b_.Reshape(y, {6});
  b_.Emit1("silu", {view});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 1);
  EXPECT_EQ(Ops(), (Names{"swiglu", "silu"}));
  const Node& fused = graph_.nodes[graph_.phases[0].nodes[0]];
  EXPECT_EQ(fused.operands, (absl::InlinedVector<ValueId, 6>{x_, z_}));
  EXPECT_EQ(fused.results, (absl::InlinedVector<ValueId, 4>{y}));
  EXPECT_EQ(graph_.values[y].producer, graph_.phases[0].nodes[0]);
  EXPECT_EQ(graph_.values[view].producer, graph_.phases[0].nodes[0]);
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
}

TEST_F(FusionTest, ReplacesEachMatchOnce) {
  ValueId y = x_;
  for (int i = 0; i < 3; ++i) y = b_.Emit1("relu", {b_.Emit1("add", {y, z_})});
  const ValueId sum = b_.Emit1("add", {y, y});
  b_.Emit1("relu", {sum});
  b_.Emit1("relu", {sum});  // keeps the sum
  EXPECT_EQ(Fuse(graph_, 0, kChain), 3);
  EXPECT_EQ(Ops(),
            (Names{"swiglu", "swiglu", "swiglu", "add", "relu", "relu"}));
}

TEST_F(FusionTest, KeepsWhatOthersRead) {
  const ValueId sum = b_.Emit1("add", {x_, z_});
  b_.Emit1("relu", {sum});
  b_.Emit1("silu", {b_.Slice(sum, 0, 1, 2)});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
  EXPECT_EQ(Ops(), (Names{"add", "relu", "silu"}));
}

TEST_F(FusionTest, KeepsNamedOutputs) {
  const ValueId sum = b_.Emit1("add", {x_, z_});
  b_.Emit1("relu", {sum});
  graph_.outputs["sum"] = sum;
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
  graph_.outputs.clear();
  EXPECT_EQ(Fuse(graph_, 0, kChain), 1);
}

TEST_F(FusionTest, KeepsWhatOutlivesThePhase) {
  const BufferId kept = AddBuffer(24);
  graph_.buffers[kept].lifetime = Lifetime::kStep;
  b_.Emit1("relu", {b_.Emit1("add", {x_, z_}, {}, {kept, 0, type_})});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
}

TEST_F(FusionTest, KeepsDirectionsApart) {
  const ValueId sum = b_.Emit1("add", {x_, z_});
  b_.SetDirection(Direction::kBackward);
  b_.Emit1("relu", {sum});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
}

// The sum would be made later, from an x that is no longer the same; or the
// result earlier, over bytes that are still read.
TEST_F(FusionTest, MovesNodesOnlyWhereNobodyIsInTheWay) {
  const BufferId in = AddBuffer(24), out = AddBuffer(24);
  const ValueId a = b_.Emit1("relu", {x_}, {}, {in, 0, type_});
  const ValueId old = b_.Emit1("relu", {x_}, {}, {out, 0, type_});
  const ValueId sum = b_.Emit1("add", {a, z_});
  b_.Emit1("silu", {z_}, {}, {in, 0, type_});  // a changes
  const ValueId reader = b_.Emit1("silu", {old});
  b_.Emit1("relu", {sum}, {}, {out, 0, type_});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
  // Without the reader they meet at the place of the first.
  ProducerOf(reader).operands[0] = z_;
  EXPECT_EQ(Fuse(graph_, 0, kChain), 1);
  EXPECT_EQ(Ops(), (Names{"relu", "relu", "swiglu", "silu", "silu"}));
}

TEST_F(FusionTest, DoesNotWriteWhatItReads) {
  const BufferId in = AddBuffer(24);
  const ValueId a = b_.Emit1("relu", {x_}, {}, {in, 0, type_});
  const ValueId sum = b_.Emit1("add", {a, z_});
  b_.Emit1("relu", {sum}, {}, {in, 0, type_});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
}

TEST_F(FusionTest, AsksTheOpForTypes) {
  const ValueId sum = b_.Emit1("add", {x_, z_});
  b_.Emit1("relu", {sum});
  constexpr FusionPattern refused = {.name = "refused",
                                     .replaces = "s = add(a, b); y = relu(s)",
                                     .by = "y = dropout(a, b, a)"};
  EXPECT_EQ(Fuse(graph_, 0, refused), 0);
  // Of another shape, or more of them.
  constexpr FusionPattern shape = {.name = "shape",
                                   .replaces = "s = add(a, b); y = relu(s)",
                                   .by = "y = column_sum(a)"};
  EXPECT_EQ(Fuse(graph_, 0, shape), 0);
  constexpr FusionPattern count = {.name = "count",
                                   .replaces = "s = add(a, b); y = relu(s)",
                                   .by = "y = swiglu_gradient(a, a, b)"};
  EXPECT_EQ(Fuse(graph_, 0, count), 0);
}

TEST_F(FusionTest, AccumulatesWhereTheNodesDid) {
  const ValueId y = b_.Emit1("relu", {x_});
  const ValueId into = b_.Input("into", TensorType(DType::kF32, {3}));
  b_.Emit1("column_sum", {y, into}, Attributes().SetInt("accumulate", 1));
  EXPECT_EQ(Fuse(graph_, 0, kSum), 1);
  const Node& fused = graph_.nodes[graph_.phases[0].nodes[0]];
  EXPECT_EQ(fused.attributes, Attributes().SetInt("accumulate", 1));
  EXPECT_EQ(fused.operands, (absl::InlinedVector<ValueId, 6>{x_, into}));
}

TEST_F(FusionTest, JoinsAndTestsAttributes) {
  const auto emit = [&](int64_t tanh, int64_t other) {
    const ValueId y = b_.Emit1("gelu", {x_}, Attributes().SetInt("tanh", tanh));
    b_.Emit1("gelu", {y}, Attributes().SetInt("tanh", other));
  };
  constexpr FusionPattern pattern = {
      .name = "attributes",
      .replaces = "y = gelu(x) tanh=1; w = gelu(y)",
      .by = "w = gelu(x) more=text"};
  emit(0, 0);  // not what the pattern asks for
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
  emit(1, 0);  // cannot be joined
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
  emit(1, 1);
  EXPECT_EQ(Fuse(graph_, 0, pattern), 1);
  const Node& fused = graph_.nodes[graph_.phases[0].nodes.back()];
  EXPECT_EQ(fused.attributes,
            Attributes().SetInt("tanh", 1).SetString("more", "text"));
}

// Nodes that read one value, of which none reads another's result.
TEST_F(FusionTest, FindsSiblings) {
  const ValueId w = b_.Input("w", TensorType(DType::kF32, {3}));
  const auto norm =
      b_.Emit("rms_norm", {x_, w}, Attributes().SetDouble("epsilon", 1e-5));
  const ValueId y = b_.Emit1("relu", {x_});
  b_.Emit1("silu", {y});
  constexpr FusionPattern pattern = {
      .name = "siblings",
      .replaces = "y, r = rms_norm(x, w...); z = relu(x)",
      .by = "z, y, r = add_rms_norm(x, x, w...)"};
  EXPECT_EQ(Fuse(graph_, 0, pattern), 1);
  EXPECT_EQ(Ops(), (Names{"add_rms_norm", "silu"}));
  const Node& fused = graph_.nodes[graph_.phases[0].nodes[0]];
  EXPECT_EQ(fused.results,
            (absl::InlinedVector<ValueId, 4>{y, norm[0], norm[1]}));
}

TEST_F(FusionTest, AttributesThatAreSetAreNoConflict) {
  constexpr FusionPattern pattern = {.name = "set",
                                     .replaces = "y = gelu(x); w = gelu(y)",
                                     .by = "w = gelu(x) tanh=1"};
  const ValueId y = b_.Emit1("gelu", {x_}, Attributes().SetInt("tanh", 2));
  b_.Emit1("gelu", {y}, Attributes().SetInt("tanh", 3).SetInt("other", 4));
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);  // the first has no other
  ProducerOf(y).attributes.SetInt("other", 4).SetInt("absent", 0);
  EXPECT_EQ(Fuse(graph_, 0, pattern), 1);
  EXPECT_EQ(
      graph_.nodes[graph_.phases[0].nodes[0]].attributes,
      Attributes().SetInt("tanh", 1).SetInt("other", 4).SetInt("absent", 0));
}

TEST_F(FusionTest, SharedNodesStayForOthers) {
  const ValueId r = b_.Emit1("relu", {x_});
  const ValueId y = b_.Emit1("add", {r, z_});
  graph_.outputs["other"] = b_.Emit1("silu", {r});
  graph_.outputs["y"] = y;
  EXPECT_EQ(Fuse(graph_, 0, kShared), 1);
  EXPECT_EQ(Ops(), (Names{"relu", "swiglu", "silu"}));
  EXPECT_EQ(ProducerOf(y).operands, (absl::InlinedVector<ValueId, 6>{x_, z_}));
  EXPECT_EQ(ProducerOf(r).op->name, "relu");
  ASSERT_TRUE(Lower(graph_, TargetSpec(), nullptr, {"all"}).ok());
  EXPECT_EQ(Ops(), (Names{"relu", "swiglu", "silu"}));
  graph_.outputs.erase("other");
  ASSERT_TRUE(Lower(graph_, TargetSpec(), nullptr, {"all"}).ok());
  EXPECT_EQ(Ops(), Names{"swiglu"});
}

TEST_F(FusionTest, SharedNodesMayMakeWhatIsKept) {
  const BufferId kept = AddBuffer(24);
  graph_.buffers[kept].lifetime = Lifetime::kStep;
  const ValueId r = b_.Emit1("relu", {x_}, {}, {kept, 0, type_});
  b_.Emit1("add", {r, z_});
  EXPECT_EQ(Fuse(graph_, 0, kShared), 1);
  EXPECT_EQ(Ops(), (Names{"relu", "swiglu"}));
}

TEST_F(FusionTest, OneSharedNodeServesSeveral) {
  const ValueId r = b_.Emit1("relu", {x_});
  b_.Emit1("add", {r, z_});
  b_.Emit1("add", {r, x_});
  constexpr FusionPattern other = {.name = "other",
                                   .replaces = "*r = relu(x); y = silu(r)",
                                   .by = "y = gelu(x)"};
  b_.Emit1("silu", {r});
  EXPECT_EQ(Fuse(graph_, 0, kShared), 2);
  EXPECT_EQ(Fuse(graph_, 0, other), 1);
  EXPECT_EQ(Ops(), (Names{"relu", "swiglu", "swiglu", "gelu"}));
}

TEST_F(FusionTest, OnlySharedNodesAreOfAnotherDirection) {
  const ValueId r = b_.Emit1("relu", {x_});
  const ValueId s = b_.Emit1("add", {r, z_});
  b_.SetDirection(Direction::kBackward);
  const ValueId y = b_.Emit1("silu", {s});
  EXPECT_EQ(Fuse(graph_, 0, kSharedChain), 0);
  ProducerOf(s).direction = Direction::kBackward;
  ProducerOf(r).lane = LaneKind::kReduce;
  EXPECT_EQ(Fuse(graph_, 0, kSharedChain), 0);
  ProducerOf(r).lane = LaneKind::kCompute;
  EXPECT_EQ(Fuse(graph_, 0, kSharedChain), 1);
  EXPECT_EQ(ProducerOf(y).direction, Direction::kBackward);
  EXPECT_EQ(ProducerOf(r).direction, Direction::kForward);
}

// Backward would keep it from forward.
TEST_F(FusionTest, WhatIsMadeAgainIsNotKept) {
  const ValueId a = b_.Emit1("silu", {x_});
  const ValueId r = b_.Emit1("relu", {a});
  const ValueId y = b_.Emit1("add", {r, z_});
  graph_.buffers[graph_.values[a].buffer].rematerialize = true;
  ProducerOf(y).direction = Direction::kBackward;
  EXPECT_EQ(Fuse(graph_, 0, kShared), 0);
  ProducerOf(y).direction = Direction::kForward;
  EXPECT_EQ(Fuse(graph_, 0, kShared), 1);
}

TEST_F(FusionTest, OperandsOfSharedNodesAreStillThere) {
  const BufferId in = AddBuffer(24);
  const ValueId a = b_.Emit1("silu", {x_}, {}, {in, 0, type_});
  const ValueId r = b_.Emit1("relu", {a});
  const ValueId writer = b_.Emit1("silu", {z_}, {}, {in, 0, type_});
  b_.Emit1("add", {r, z_});
  EXPECT_EQ(Fuse(graph_, 0, kShared), 0);
  // A reader is in nobody's way.
  const ValueId other = b_.Emit1("silu", {z_});
  ProducerOf(writer).operands[0] = a;
  ProducerOf(writer).results[0] = other;
  EXPECT_EQ(Fuse(graph_, 0, kShared), 1);
}

// Not where the place of the first is before what makes them.
TEST_F(FusionTest, OperandsOfSharedNodesAreThereAlready) {
  constexpr FusionPattern pattern = {
      .name = "first",
      .replaces = "s = silu(z); *r = relu(x); y = add(r, s)",
      .by = "y = swiglu(x, z)"};
  const auto emit = [&](bool before) {
    const BufferId in = AddBuffer(24);
    ValueId a = x_;
    const ValueId c = b_.Emit1("gelu", {z_}, {}, {in, 0, type_});
    if (before) a = b_.Emit1("gelu", {x_});
    const ValueId s = b_.Emit1("silu", {c});
    if (!before) a = b_.Emit1("gelu", {x_});
    const ValueId r = b_.Emit1("relu", {a});
    b_.Emit1("gelu", {z_}, {}, {in, 0, type_});  // silu cannot come later
    b_.Emit1("add", {r, s});
  };
  emit(false);
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
  emit(true);
  EXPECT_EQ(Fuse(graph_, 0, pattern), 1);
}

// Of two nodes that write the same bytes the later one counts; whoever writes
// them once they are read doesn't.
TEST_F(FusionTest, ResultsOfSharedNodesAreTheOnesRead) {
  const BufferId out = AddBuffer(24);
  const ValueId r = b_.Emit1("relu", {x_}, {}, {out, 0, type_});
  const ValueId other = b_.Emit1("gelu", {z_}, {}, {out, 0, type_});
  const ValueId s = b_.Emit1("add", {other, z_});
  b_.Emit1("relu", {x_}, {}, {out, 0, type_});
  b_.Emit1("silu", {s});
  EXPECT_EQ(Fuse(graph_, 0, kSharedChain), 0);
  ProducerOf(other).results[0] = b_.Emit1("gelu", {z_});
  ProducerOf(s).operands[0] = r;
  EXPECT_EQ(Fuse(graph_, 0, kSharedChain), 1);
}

TEST_F(FusionTest, SharedNodesDoNotAccumulate) {
  constexpr FusionPattern pattern = {
      .name = "accumulates",
      .replaces = "*c = column_sum(x); y = relu(c)",
      .by = "y = column_sum(x)"};
  const ValueId into = b_.Input("into", TensorType(DType::kF32, {3}));
  b_.Emit1("relu", {b_.Emit1("column_sum", {x_, into},
                             Attributes().SetInt("accumulate", 1))});
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
  b_.Emit1("relu", {b_.Emit1("column_sum", {x_})});
  EXPECT_EQ(Fuse(graph_, 0, pattern), 1);
}

TEST_F(FusionTest, SharedNodesKeepTheirOperands) {
  const ValueId a = b_.Emit1("add", {x_, z_});
  b_.Emit1("silu", {b_.Emit1("relu", {a})});
  constexpr FusionPattern pattern = {
      .name = "operand",
      .replaces = "a = add(x, z); *r = relu(a); y = silu(r)",
      .by = "y = swiglu(x, z)"};
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
}

TEST_F(FusionTest, KnowsHalvesOfColumns) {
  constexpr FusionPattern pattern = {
      .name = "halves",
      .replaces = "y = matmul(a, b...); z = swiglu(y.left, y.right)",
      .by = "y, z = matmul_pointwise(a, b...) function=swiglu"};
  const ValueId w = b_.Input("w", TensorType(DType::kF32, {3, 8}));
  const ValueId y = b_.Emit1("matmul", {x_, w});
  const auto part = [&](int64_t begin, int64_t end) {
    return b_.Slice(y, 1, begin, end);
  };
  b_.Emit1("swiglu", {part(4, 8), part(0, 4)});  // the wrong way round
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
  b_.Emit1("swiglu", {part(0, 2), part(2, 4)});  // quarters
  EXPECT_EQ(Fuse(graph_, 0, pattern), 0);
  const ValueId z = b_.Emit1("swiglu", {part(0, 4), part(4, 8)});
  b_.Emit1("silu", {part(0, 4)});
  EXPECT_EQ(Fuse(graph_, 0, pattern), 1);
  EXPECT_EQ(Ops(), (Names{"matmul_pointwise", "swiglu", "swiglu", "silu"}));
  const Node& fused = graph_.nodes[graph_.phases[0].nodes[0]];
  EXPECT_EQ(fused.operands, (absl::InlinedVector<ValueId, 6>{x_, w}));
  EXPECT_EQ(fused.results, (absl::InlinedVector<ValueId, 4>{y, z}));
}

// The gradient of attention with rotated q and k, whose gradients are columns
// of one buffer. `between` adds nodes before those of q and k.
class InterleavedTest : public FusionTest {
 protected:
  static constexpr int64_t kRow = 20, kQ = 0, kK = 8, kV = 12, kMore = 16;

  // Heads of 4 columns.
  TensorType Heads(int64_t heads) const {
    return TensorType(DType::kF32, {2, 3, heads, 4}, {3 * kRow, kRow, 4, 1});
  }
  ValueId Columns(ValueId rows, int64_t begin, int64_t heads) {
    const TensorType type = Heads(heads);
    return b_.View(rows, begin, type.shape, type.strides);
  }
  Placement Place(int64_t begin, int64_t heads) const {
    return {gradient_, begin * 4, Heads(heads)};
  }
  ValueId Rotate(ValueId x, bool inverse, Placement place = {}) {
    Attributes attributes = Attributes().SetDouble("theta", 1e4);
    if (inverse) attributes.SetInt("inverse", 1);
    return b_.Emit1("rotary", {x, positions_}, attributes, place);
  }

  template <typename Between>
  int FuseGradient(int64_t k_begin, const Between& between) {
    const auto input = [&](absl::string_view name, Dims shape) {
      return b_.Input(name, TensorType(DType::kF32, std::move(shape)));
    };
    rows_ = input("rows", {6, kRow});
    positions_ = b_.Input("positions", TensorType(DType::kI32, {6}));
    gradient_ = AddBuffer(6 * kRow * 4);
    const ValueId q = Columns(rows_, kQ, 2), k = Columns(rows_, kK, 1);
    const ValueId q2 = Rotate(q, false), k2 = Rotate(k, false);
    const ValueId v = Columns(rows_, kV, 1);
    const Attributes causal = Attributes().SetInt("causal", 1);
    const ValueId operands[] = {q2, k2, v};
    const auto out = b_.Emit("attention", operands, causal);
    b_.SetDirection(Direction::kBackward);
    const ValueId dout = input("dout", {2, 3, 2, 4});
    const ValueId read[] = {dout, q2, k2, v, out[0], out[1]};
    const Placement places[] = {{}, {}, Place(kV, 1)};
    const auto made = b_.Emit("attention_gradient", read, causal, places);
    between(made[2]);
    const ValueId dk = Rotate(made[1], true, Place(k_begin, 1));
    const ValueId dq = Rotate(made[0], true, Place(kQ, 2));
    const int fused = Fuse(graph_, 0, kGradient);
    if (fused == 0) return 0;
    const Node& node = ProducerOf(dq);
    EXPECT_EQ(node.operands,
              (absl::InlinedVector<ValueId, 6>{dout, q, k, v, out[0], out[1]}));
    EXPECT_EQ(node.results, (absl::InlinedVector<ValueId, 4>{dq, dk, made[2]}));
    EXPECT_EQ(node.attributes,
              Attributes(causal).SetDouble("theta", 1e4).SetInt("inverse", 0));
    return fused;
  }

  static constexpr FusionPattern kGradient = {
      .name = "gradient",
      .replaces =
          "*q2 = rotary(q, p) inverse=0; *k2 = rotary(k, p) inverse=0;"
          "dq2, dk2, dv = attention_gradient(dout, q2, k2, v, rest...);"
          "dq = rotary(dq2, p) inverse=1; dk = rotary(dk2, p) inverse=1",
      .by = "dq, dk, dv = attention_gradient(dout, q, k, v, rest...) inverse=0",
  };
  ValueId rows_ = kNone, positions_ = kNone;
  BufferId gradient_ = kNone;
};

TEST_F(InterleavedTest, ViewsOfOneBufferFuse) {
  EXPECT_EQ(FuseGradient(kK, [](ValueId) {}), 1);
  EXPECT_EQ(Ops(),
            (Names{"rotary", "rotary", "attention", "attention_gradient"}));
}

TEST_F(InterleavedTest, ViewsThatOverlapDoNot) {
  EXPECT_EQ(FuseGradient(kK + 2, [](ValueId) {}), 0);
}

TEST_F(InterleavedTest, OtherColumnsAreNotInTheWay) {
  EXPECT_EQ(FuseGradient(kK,
                         [&](ValueId dv) {
                           const ValueId more = Columns(rows_, kMore, 1);
                           Rotate(more, false, Place(kMore, 1));
                           Rotate(dv, false);
                         }),
            1);
  // Before the reader of dv.
  EXPECT_EQ(Ops(), (Names{"rotary", "rotary", "attention", "attention_gradient",
                          "rotary", "rotary"}));
}

TEST_F(InterleavedTest, OthersOfTheSameColumnsAre) {
  EXPECT_EQ(FuseGradient(kK,
                         [&](ValueId dv) {
                           Rotate(dv, false);
                           // What was there before dk.
                           Rotate(b_.Current(gradient_, Heads(1), kK * 4),
                                  false);
                         }),
            0);
}

// A result beside an operand, and one that goes beside what others write.
TEST_F(InterleavedTest, OperandsMayLieBesideResults) {
  constexpr FusionPattern pattern = {.name = "beside",
                                     .replaces =
                                         "s = rotary(x, p);"
                                         "y = rotary(s, p)",
                                     .by = "y = rotary(x, p)"};
  positions_ = b_.Input("positions", TensorType(DType::kI32, {6}));
  const ValueId x = b_.Input("heads", TensorType(DType::kF32, {2, 3, 1, 4}));
  for (const int64_t begin : {0, 2, 4}) {
    gradient_ = AddBuffer(6 * kRow * 4);
    const ValueId a = b_.Emit1("rotary", {x, positions_},
                               Attributes().SetDouble("theta", 2), Place(0, 1));
    const ValueId s = Rotate(a, false, Place(kK, 1));
    Rotate(x, true, Place(kV, 1));
    Rotate(s, false, Place(begin, 1));
    EXPECT_EQ(Fuse(graph_, 0, pattern), begin == 4 ? 1 : 0) << begin;
  }
}

TEST_F(FusionTest, LowerFusesUnlessToldNotTo) {
  const auto emit = [&] {
    const ValueId w = b_.Input("w", TensorType(DType::kF32, {3}));
    const ValueId sum = b_.Emit1("add", {x_, z_});
    const auto y =
        b_.Emit("rms_norm", {sum, w}, Attributes().SetDouble("epsilon", 1e-5));
    graph_.outputs["y"] = y[0];
  };
  emit();
  const Names names = {"add", "rms_norm"};
  ASSERT_TRUE(Lower(graph_, TargetSpec(), nullptr, {"all"}).ok());
  EXPECT_EQ(Ops(), names);
  ASSERT_TRUE(Lower(graph_, TargetSpec(), nullptr, {"add_rms_norm"}).ok());
  EXPECT_EQ(Ops(), names);
  ASSERT_TRUE(Lower(graph_, TargetSpec(), nullptr).ok());
  EXPECT_EQ(Ops(), Names{"add_rms_norm"});
}

// What a target must name is left alone by others.
TEST_F(FusionTest, TargetsChoose) {
  {
    const ValueId x = b_.Input("rows", TensorType(DType::kF32, {5, 4}));
    const ValueId dy = b_.Input("dy", TensorType(DType::kF32, {5, 6}));
    const ValueId w = b_.Input("w", TensorType(DType::kF32, {4, 6}));
    const Attributes tanh = Attributes().SetInt("tanh", 1);
    auto& outputs = graph_.outputs;
    const ValueId y = b_.Emit1("matmul", {x, w});
    outputs["y"] = y;
    outputs["z"] = b_.Emit1("gelu", {y}, tanh);
    outputs["erf"] = b_.Emit1("gelu", {b_.Emit1("matmul", {x, w})});
    const Attributes over_rows = Attributes().SetInt("transpose_a", 1);
    outputs["dw"] = b_.Emit1("matmul", {dy, x}, over_rows);
    outputs["db"] = b_.Emit1("column_sum", {dy});
    outputs["dw2"] = b_.Emit1("matmul", {x, dy}, over_rows);
    outputs["db2"] = b_.Emit1("column_sum", {dy});
    outputs["dx"] = b_.Emit1(
        "gelu_gradient",
        {b_.Emit1("matmul", {dy, w}, Attributes().SetInt("transpose_b", 1)), x},
        tanh);
  }
  const Names apart = {"matmul", "gelu",         "matmul", "gelu",
                       "matmul", "column_sum",   "matmul", "column_sum",
                       "matmul", "gelu_gradient"};
  ASSERT_TRUE(Lower(graph_, TargetSpec(), nullptr).ok());
  EXPECT_EQ(Ops(), apart);
  TargetSpec target;
  for (const std::string& name : FusionsByTarget()) target.add_fusions(name);
  ASSERT_TRUE(Lower(graph_, target, nullptr, {"all"}).ok());
  EXPECT_EQ(Ops(), apart);
  ASSERT_TRUE(Lower(graph_, target, nullptr).ok());
  EXPECT_EQ(Ops(),
            (Names{"matmul_pointwise", "matmul", "gelu", "matmul_column_sum",
                   "matmul_column_sum", "matmul_pointwise"}));
}

TEST(FusionPatterns, AllAreWellFormed) {
  std::map<absl::string_view, int> names;
  for (const FusionPattern& pattern : FusionPatterns()) {
    EXPECT_GE(ParseFusion(pattern).replaces.size(), 2u) << pattern.name;
    EXPECT_EQ(++names[pattern.name], 1) << pattern.name;
    EXPECT_NE(pattern.name, kAllFusions);
  }
}

TEST(FusionPatternsDeathTest, RefusesWhatIsNoPattern) {
  const auto parse = [](absl::string_view replaces, absl::string_view by) {
    ParseFusion({.name = "wrong", .replaces = replaces, .by = by});
  };
  EXPECT_DEATH(parse("y = frobnicate(x)", "y = relu(x)"), "frobnicate");
  EXPECT_DEATH(parse("y = relu(x", "y = relu(x)"), "wrong at");
  EXPECT_DEATH(parse("y = relu(x)", "y = relu(w)"), "relu\\(w\\)");
  EXPECT_DEATH(parse("y = relu(x)", "x = relu(x)"), "wrong at");
  EXPECT_DEATH(parse("y = relu(x)", "y = relu(x) attribute"), "wrong at");
  EXPECT_DEATH(parse("y = relu(x.left)", "y = relu(x.left)"), "wrong at");
  // Shared nodes: the last, and what `by` makes, reads or is.
  EXPECT_DEATH(parse("*y = relu(x)", "y = relu(x)"), "wrong at: \\*y");
  EXPECT_DEATH(parse("y = relu(x); *z = silu(y)", "y = relu(x)"), "wrong at");
  EXPECT_DEATH(parse("*y = relu(x); z = silu(y)", "y = relu(x)"), "wrong at");
  EXPECT_DEATH(parse("*y = relu(x); z = silu(y)", "z = relu(y)"), "wrong at");
  EXPECT_DEATH(parse("*y = relu(x); z = silu(y.left)", "z = relu(y.left)"),
               "wrong at");
  EXPECT_DEATH(parse("*y = relu(x); z = silu(y)", "*z = relu(x)"), "wrong at");
  // An update in place.
  EXPECT_DEATH(parse("y = accumulate(x, z, m)", "y = add(x, z)"), "wrong at");
}

}  // namespace
}  // namespace shardgraph
