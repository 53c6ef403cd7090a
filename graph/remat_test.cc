#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/passes.h"
#include "graph/test_graph.h"
#include "graph/testing/gradient_check.h"
#include "graph/testing/interpreter.h"
#include "gtest/gtest.h"
#include "kernels/collective/communicator.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

// A world of one.
class SelfCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status AllGather(const void* shard, void* full, int64_t count,
                         DType dtype, Lane&) override {
    std::memmove(full, shard, count * SizeOf(dtype));
    return absl::OkStatus();
  }
  absl::Status ReduceScatter(const void* full, void* shard, int64_t count,
                             DType dtype, Lane&) override {
    std::memmove(shard, full, count * SizeOf(dtype));
    return absl::OkStatus();
  }
  absl::Status AllReduce(void*, int64_t, DType, ReduceOp, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status AllToAll(const void* send, void* receive, int64_t count,
                        DType dtype, Lane&) override {
    std::memmove(receive, send, count * SizeOf(dtype));
    return absl::OkStatus();
  }
  absl::Status Broadcast(void*, int64_t, DType, int, Lane&) override {
    return absl::OkStatus();
  }
  absl::Status Barrier(Lane&) override { return absl::OkStatus(); }
  void Abort(const absl::Status&) override {}
};

struct Policy {
  bool reshard = false;  // all units but the last
  bool recompute = false;
  bool inputs_too = false;  // the stream between blocks is not kept either
  bool recipes = false;     // gathers again from what was put aside
};

// Blocks x + dropout(gelu(norm(x) up) down), each a unit with a gathered flat
// parameter, under a head.
struct Network {
  static constexpr int kBlocks = 3;
  static constexpr int64_t kWidth = 4, kHidden = 6, kRows = 4;
  static constexpr int64_t kFlat = kWidth + 2 * kWidth * kHidden + 4;  // padded

  explicit Network(const Policy& policy) : b(&graph), interpreter(graph) {
    graph.groups.push_back({"world", 1, 1});
    b.SetPhase("micro");
    const ValueId ids = b.Input("ids", TensorType(DType::kI64, {2}));
    const ValueId targets =
        b.Input("targets", TensorType(DType::kI32, {kRows}));
    const ValueId head = b.Input("head", TensorType(DType::kF32, {5, kWidth}));
    ValueId x = b.Input("x", TensorType(DType::kF32, {kRows, kWidth}));
    inputs = {ids, targets, head, x};
    DifferentiateOptions options;
    options.zero_unused = true;
    for (int i = 0; i < kBlocks; ++i) {
      b.SetUnit(b.AddUnit(absl::StrCat("block", i)));
      b.SetScope(absl::StrCat("block", i));
      const ValueId shard =
          b.Input(absl::StrCat("shard", i), TensorType(DType::kF32, {kFlat}));
      inputs.push_back(shard);
      b.SetRematerialize(policy.reshard && i + 1 < kBlocks);
      const ValueId full =
          b.Emit1("all_gather", {shard},
                  Attributes().SetString("group", "world").SetInt("size", 1));
      gathered.push_back(graph.values[full].buffer);
      if (policy.recipes) {
        b.SetRematerialize(false);
        const Attributes group =
            Attributes().SetString("group", "world").SetInt("size", 1);
        kept.push_back(b.Emit1("take_shard", {full}, group));
        recipes[gathered.back()] = {"all_gather", {kept.back()}, group};
      }
      b.SetRematerialize(policy.recompute);
      const ValueId norm = b.View(full, 0, {kWidth}, {1});
      const ValueId up = b.View(full, kWidth, {kHidden, kWidth}, {kWidth, 1});
      const ValueId down = b.View(full, kWidth + kWidth * kHidden,
                                  {kWidth, kHidden}, {kHidden, 1});
      const ValueId n = b.Emit("rms_norm", {x, norm},
                               Attributes().SetDouble("epsilon", 1e-5))[0];
      const Attributes transposed = Attributes().SetInt("transpose_b", 1);
      const ValueId h =
          b.Emit1("gelu", {b.Emit1("matmul", {n, up}, transposed)});
      const ValueId y = b.Emit1("matmul", {h, down}, transposed);
      const ValueId dropped =
          b.Emit1("dropout",
                  {b.Reshape(y, {2, kRows / 2 * kWidth}), ids,
                   b.StateField(offsetof(StepState, run_step),
                                TensorType(DType::kI64, {}))},
                  Attributes()
                      .SetDouble("rate", 0.3)
                      .SetInt("seed", 1)
                      .SetInt("key", i));
      b.SetRematerialize(policy.inputs_too);
      x = b.Emit1("add", {x, b.Reshape(dropped, {kRows, kWidth})});
      options.bases.push_back(
          {.value = full, .required = {{"all", 0, kFlat - 4}}});
      options.leaves.push_back(
          {shard, [this](ValueId g) { gradients.push_back(g); }});
    }
    b.SetRematerialize(false);
    b.SetUnit(kNone);
    graph.outputs["stats"] = b.Emit1("cross_entropy_head", {x, head, targets},
                                     Attributes().SetInt("chunk_rows", 3));
    EXPECT_TRUE(Differentiate(b, options).ok());
    const absl::Status status = Rematerialize(graph, 0, recipes);
    EXPECT_TRUE(status.ok()) << status;
  }

  std::vector<std::string> Gradients() {
    interpreter.SetCommunicator("world", &communicator);
    int seed = 0;
    for (ValueId v : inputs) {
      const int64_t n = b.type(v).num_elements();
      std::vector<double> elements = RandomElements(n, ++seed);
      if (!IsFloating(b.type(v).dtype))
        for (int64_t i = 0; i < n; ++i) elements[i] = (7 * i + 2) % 5;
      interpreter.Write(v, elements);
    }
    const absl::Status status = interpreter.Run("micro");
    EXPECT_TRUE(status.ok()) << status;
    std::vector<std::string> bytes;
    for (ValueId g : gradients)
      bytes.push_back(interpreter.Bytes(b.View(g, 0, {kFlat - 4}, {1})));
    return bytes;
  }

  std::vector<const Node*> Nodes() const {
    std::vector<const Node*> nodes;
    for (NodeId id : graph.phases[0].nodes) nodes.push_back(&graph.nodes[id]);
    return nodes;
  }
  int Count(absl::string_view op, Direction direction) const {
    int count = 0;
    for (const Node* node : Nodes())
      count += node->op->name == op && node->direction == direction;
    return count;
  }

  Graph graph;
  GraphBuilder b;
  Interpreter interpreter;
  SelfCommunicator communicator;
  std::vector<ValueId> inputs;
  std::vector<ValueId> gradients;
  std::vector<BufferId> gathered;
  std::vector<ValueId> kept;
  Recipes recipes;
};

TEST(RematTest, GradientsAreBitwiseEqualUnderEveryPolicy) {
  const std::vector<std::string> expected = Network({}).Gradients();
  ASSERT_EQ(expected.size(), 3u);
  EXPECT_NE(expected[0], expected[1]);
  for (const bool reshard : {false, true}) {
    for (const bool recompute : {false, true}) {
      for (const bool inputs_too : {false, true}) {
        SCOPED_TRACE(testing::Message() << reshard << recompute << inputs_too);
        EXPECT_EQ(Network({reshard, recompute, inputs_too}).Gradients(),
                  expected);
      }
    }
  }
}

TEST(RematTest, NothingMarkedNothingDone) {
  const Network network({});
  for (const Node* node : network.Nodes())
    EXPECT_NE(node->direction, Direction::kRecompute);
}

TEST(RematTest, PlansAreVerified) {
  for (const bool inputs_too : {false, true}) {
    Network network({true, true, inputs_too});
    for (ValueId g : network.gradients)
      network.graph.outputs[absl::StrCat("gradient", g)] = g;
    ASSERT_TRUE(Lower(network.graph, TargetSpec(), nullptr).ok());
    for (int lanes : {1, 3}) {
      const absl::Status status = Verify(MakePlan(network.graph, lanes));
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

// A resharded unit is gathered again into a buffer of its own; the forward one
// is free after its last forward reader.
TEST(RematTest, ReshardGathersAgain) {
  const Network network({.reshard = true});
  EXPECT_EQ(network.Count("all_gather", Direction::kForward), 3);
  EXPECT_EQ(network.Count("all_gather", Direction::kRecompute), 2);
  for (int unit = 0; unit < 2; ++unit) {
    const std::vector<const Node*> nodes = network.Nodes();
    const BufferId forward = network.gathered[unit];
    size_t gather = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i]->direction == Direction::kRecompute &&
          nodes[i]->unit == unit) {
        gather = i;
      }
      for (ValueId v : nodes[i]->operands) {
        if (network.graph.values[v].buffer == forward) {
          EXPECT_EQ(nodes[i]->direction, Direction::kForward);
        }
      }
    }
    ASSERT_GT(gather, 0u);
    const BufferId again =
        network.graph.values[nodes[gather]->results[0]].buffer;
    EXPECT_NE(again, forward);
    EXPECT_EQ(network.graph.buffers[again].bytes,
              network.graph.buffers[forward].bytes);
    EXPECT_FALSE(network.graph.buffers[again].rematerialize);
    // Just before its first reader, which is of that unit.
    const Node& reader = *nodes[gather + 1];
    EXPECT_EQ(reader.unit, unit);
    EXPECT_TRUE(std::any_of(
        reader.operands.begin(), reader.operands.end(),
        [&](ValueId v) { return network.graph.values[v].buffer == again; }));
  }
}

// With a recipe it is gathered from there, to the same bits, and its shard is
// not looked at again.
TEST(RematTest, FollowsRecipes) {
  for (const bool recompute : {false, true}) {
    const Network network(
        {.reshard = true, .recompute = recompute, .recipes = true});
    EXPECT_EQ(network.Count("take_shard", Direction::kForward), 3);
    EXPECT_EQ(network.Count("take_shard", Direction::kRecompute), 0);
    int again = 0;
    for (const Node* node : network.Nodes()) {
      if (node->op->name != "all_gather" ||
          node->direction != Direction::kRecompute) {
        continue;
      }
      EXPECT_EQ(node->operands[0], network.kept[node->unit]);
      ++again;
    }
    EXPECT_EQ(again, 2);
    EXPECT_EQ(
        Network({.reshard = true, .recompute = recompute, .recipes = true})
            .Gradients(),
        Network({}).Gradients());
  }
}

// Only what backward reads is made again: not the last product of a block.
TEST(RematTest, RecomputesWhatBackwardReads) {
  const Network network({.reshard = true, .recompute = true});
  EXPECT_EQ(network.Count("rms_norm", Direction::kRecompute), 3);
  EXPECT_EQ(network.Count("gelu", Direction::kRecompute), 3);
  EXPECT_EQ(network.Count("matmul", Direction::kRecompute), 3);
  EXPECT_EQ(network.Count("dropout", Direction::kRecompute), 0);
  EXPECT_EQ(network.Count("add", Direction::kRecompute), 0);
  EXPECT_EQ(network.Count("all_gather", Direction::kRecompute), 2);
  // Recomputation reads the second gather, never the first.
  for (const Node* node : network.Nodes()) {
    if (node->direction != Direction::kRecompute || node->unit == 2) continue;
    for (ValueId v : node->operands)
      EXPECT_NE(network.graph.values[v].buffer, network.gathered[node->unit]);
  }
}

TEST(RematTest, WhatWasOverwrittenCannotBeRerun) {
  Graph graph;
  graph.groups.push_back({"world", 1, 1});
  GraphBuilder b(&graph);
  b.SetPhase("micro");
  const ValueId x = b.Input("x", TensorType(DType::kF32, {4}));
  const ValueId seed = b.Input("seed", TensorType(DType::kF32, {4}));
  const ValueId w = b.Input("w", TensorType(DType::kF32, {4}));
  b.SetRematerialize(true);
  const ValueId y = b.Emit1("gelu", {b.Emit1("add", {x, w})});
  b.SetRematerialize(false);
  b.Emit1("all_reduce", {x},
          Attributes().SetString("group", "world").SetInt("size", 1));
  DifferentiateOptions options;
  options.leaves = {{w, [](ValueId) {}}};
  options.seeds = {{y, seed}};
  ASSERT_TRUE(Differentiate(b, options).ok());
  const absl::Status status = Rematerialize(graph, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("all_reduce"), absl::string_view::npos);
}

}  // namespace
}  // namespace shardgraph
