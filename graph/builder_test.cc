#include "graph/builder.h"

#include <cstddef>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using Strings = std::vector<std::string>;

class BuilderTest : public ::testing::Test {
 protected:
  BuilderTest() : builder_(&graph_) {
    builder_.SetPhase("micro");
    builder_.SetScope("block");
  }

  Graph graph_;
  GraphBuilder builder_;
};

TEST_F(BuilderTest, ViewsShareTheBytesOfTheirBase) {
  const ValueId x = builder_.Input("x", TensorType(DType::kF32, {6, 12}));
  const ValueId q = builder_.Slice(x, 1, 4, 8);
  EXPECT_EQ(builder_.type(q), TensorType(DType::kF32, {6, 4}, {12, 1}));
  EXPECT_EQ(graph_.value(q).begin(), 16);
  EXPECT_EQ(graph_.value(q).end(), 16 + (5 * 12 + 4) * 4);
  EXPECT_EQ(graph_.value(q).base, x);
  EXPECT_DEATH(builder_.View(x, 1, {6, 12}, {12, 1}), "leaves F32\\[6,12\\]");
}

TEST_F(BuilderTest, TiedResultsAreTheNextVersionOfTheSameBytes) {
  const ValueId a = builder_.Input("a", TensorType(DType::kF32, {2, 3}));
  const ValueId b = builder_.Input("b", TensorType(DType::kF32, {3, 4}));
  const ValueId first = builder_.Emit1("matmul", {a, b});
  const ValueId second = builder_.Emit1("matmul", {a, b, first},
                                        Attributes().SetInt("accumulate", 1));
  EXPECT_EQ(graph_.value(second).buffer, graph_.value(first).buffer);
  EXPECT_EQ(graph_.value(first).version + 1, graph_.value(second).version);
  EXPECT_EQ(PrintNode(graph_, 1),
            "%3 = matmul(%0, %1, %2) accumulate=1 : F32[2,4] @block forward");
}

TEST_F(BuilderTest, CurrentSeesTheLastWriterOfAnyPartOfTheRange) {
  const ValueId a = builder_.Input("a", TensorType(DType::kF32, {2, 3}));
  const BufferId flat = builder_.AddBuffer({.name = "flat", .bytes = 48});
  const TensorType type(DType::kF32, {2, 3});
  builder_.Emit("add", {a, a}, {}, {Placement{flat, 0, type}});
  builder_.Emit("add", {a, a}, {}, {Placement{flat, 24, type}});
  EXPECT_EQ(graph_.value(builder_.Current(flat, type, 0)).producer, 0);
  EXPECT_EQ(
      graph_.value(builder_.Current(flat, TensorType(DType::kF32, {12}), 0))
          .producer,
      1);
  builder_.SetPhase("update");
  EXPECT_EQ(graph_.value(builder_.Current(flat, type, 0)).producer, kNone);
}

TEST_F(BuilderTest, RefusesTypesAndPlacesThatDoNotFit) {
  const ValueId a = builder_.Input("a", TensorType(DType::kF32, {2, 3}));
  EXPECT_DEATH(builder_.Emit1("matmul", {a, a}), "matmul.*in block");
  EXPECT_DEATH(builder_.Emit1("no_such_op", {a}), "no op no_such_op");
  const BufferId small = builder_.AddBuffer({.name = "small", .bytes = 16});
  EXPECT_DEATH(
      builder_.Emit("add", {a, a}, {},
                    {Placement{small, 0, TensorType(DType::kF32, {2, 3})}}),
      "leaves");
}

TEST_F(BuilderTest, NamesAreUniqueAndInputsAreFoundAgain) {
  const BufferId first = builder_.AddBuffer({.name = "b", .bytes = 4});
  const BufferId second = builder_.AddBuffer({.name = "b", .bytes = 4});
  EXPECT_NE(graph_.buffers[first].name, graph_.buffers[second].name);
  const TensorType type(DType::kI32, {4});
  EXPECT_EQ(builder_.Input("tokens", type), builder_.Input("tokens", type));
  const ValueId loss = builder_.StateField(offsetof(StepState, loss_sum),
                                           TensorType(DType::kF64, {2}));
  EXPECT_EQ(graph_.value(loss).buffer, builder_.state_buffer());
}

TEST_F(BuilderTest, InsertsBeforeAPosition) {
  const ValueId a = builder_.Input("a", TensorType(DType::kF32, {2, 3}));
  builder_.Emit1("add", {a, a});
  builder_.SetInsertionPoint(0);
  builder_.Emit1("add", {a, a});
  builder_.Emit1("add", {a, a});
  EXPECT_EQ(graph_.phases[0].nodes, (std::vector<NodeId>{1, 2, 0}));
}

}  // namespace
}  // namespace shardgraph
