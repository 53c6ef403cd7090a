#include "graph/fusion.h"

#include <map>
#include <string>
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
  Buffer kept;
  kept.name = "kept";
  kept.bytes = 24;
  kept.lifetime = Lifetime::kStep;
  const ValueId sum =
      b_.Emit1("add", {x_, z_}, {}, {b_.AddBuffer(kept), 0, type_});
  b_.Emit1("relu", {sum});
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
  Buffer buffer;
  buffer.name = "buffer";
  buffer.bytes = 24;
  const BufferId in = b_.AddBuffer(buffer), out = b_.AddBuffer(buffer);
  const ValueId a = b_.Emit1("relu", {x_}, {}, {in, 0, type_});
  const ValueId old = b_.Emit1("relu", {x_}, {}, {out, 0, type_});
  const ValueId sum = b_.Emit1("add", {a, z_});
  b_.Emit1("silu", {z_}, {}, {in, 0, type_});  // a changes
  const ValueId reader = b_.Emit1("silu", {old});
  b_.Emit1("relu", {sum}, {}, {out, 0, type_});
  EXPECT_EQ(Fuse(graph_, 0, kChain), 0);
  // Without the reader they meet at the place of the first.
  Node& node = graph_.nodes[graph_.values[reader].producer];
  node.operands[0] = z_;
  EXPECT_EQ(Fuse(graph_, 0, kChain), 1);
  EXPECT_EQ(Ops(), (Names{"relu", "relu", "swiglu", "silu", "silu"}));
}

TEST_F(FusionTest, DoesNotWriteWhatItReads) {
  Buffer buffer;
  buffer.name = "buffer";
  buffer.bytes = 24;
  const BufferId in = b_.AddBuffer(buffer);
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
  // An update in place.
  EXPECT_DEATH(parse("y = accumulate(x, z, m)", "y = add(x, z)"), "wrong at");
}

}  // namespace
}  // namespace shardgraph
