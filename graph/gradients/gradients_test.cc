// Every rule against finite differences, on odd sizes.
#include "graph/gradients/gradients.h"

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/builder.h"
#include "graph/testing/gradient_check.h"
#include "gtest/gtest.h"
#include "kernels/op_table.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

Attributes Ints(
    std::initializer_list<std::pair<absl::string_view, int64_t>> entries) {
  Attributes attributes;
  for (const auto& [name, value] : entries) attributes.SetInt(name, value);
  return attributes;
}

ValueId RunStep(GraphBuilder& b) {
  return b.StateField(offsetof(StepState, run_step),
                      TensorType(DType::kI64, {}));
}

// --- Completeness -----------------------------------------------------------

// An op either has a rule or is known to be no part of a differentiated model.
TEST(GradientRulesTest, EveryOpIsDecided) {
  const std::set<absl::string_view> never = {
      // gradients themselves and what gradients are made of
      "attention_gradient", "column_sum", "cross_entropy_head_gradient",
      "embedding_gradient", "gelu_gradient", "layer_norm_gradient",
      "relu_gradient", "rms_norm_gradient", "silu_gradient", "swiglu_gradient",
      // what plans are lowered to
      "add_layer_norm", "add_rms_norm", "matmul_pointwise", "matmul_column_sum",
      // updates of state
      "accumulate", "adamw", "advance_state", "finish_gradients", "kv_write",
      "lion", "sgd", "sum_of_squares", "update_loss_scale",
      // collectives between forward and loss
      "all_reduce", "all_to_all", "reduce_scatter", "sum_pieces",
      // what is kept for backward
      "take_shard"};
  for (const OpDef* op : AllOps()) {
    EXPECT_NE(FindGradientRule(op->name) != nullptr, never.count(op->name) > 0)
        << std::string(op->name);
  }
  for (absl::Span<const GradientRule> family : AllGradientRules())
    for (const GradientRule& rule : family)
      EXPECT_NE(FindOp(rule.op), nullptr) << std::string(rule.op);
}

// --- matmul -----------------------------------------------------------------

TEST(GradientRulesTest, Matmul) {
  for (int transpose_a : {0, 1}) {
    for (int transpose_b : {0, 1}) {
      for (int bias : {0, 1}) {
        SCOPED_TRACE(testing::Message() << transpose_a << transpose_b << bias);
        GradientCheck check;
        const ValueId a =
            check.Parameter("a", transpose_a ? Dims{3, 5} : Dims{5, 3});
        const ValueId w =
            check.Parameter("w", transpose_b ? Dims{7, 3} : Dims{3, 7});
        std::vector<ValueId> operands = {a, w};
        if (bias) operands.push_back(check.Parameter("bias", {7}));
        check.Run([&](GraphBuilder& b) {
          return b.Emit("matmul", operands,
                        Ints({{"transpose_a", transpose_a},
                              {"transpose_b", transpose_b},
                              {"bias", bias}}))[0];
        });
      }
    }
  }
}

TEST(GradientRulesTest, MatmulOfOneValueWithItself) {
  GradientCheck check;
  const ValueId a = check.Parameter("a", {4, 4});
  check.Run([&](GraphBuilder& b) { return b.Emit1("matmul", {a, a}); });
}

// --- norm -------------------------------------------------------------------

TEST(GradientRulesTest, LayerNorm) {
  for (int bias : {0, 1}) {
    GradientCheck check;
    std::vector<ValueId> operands = {check.Parameter("x", {2, 3, 5}),
                                     check.Parameter("weight", {5})};
    if (bias) operands.push_back(check.Parameter("bias", {5}));
    Attributes attributes = Ints({{"bias", bias}});
    attributes.SetDouble("epsilon", 1e-2);
    check.Run([&](GraphBuilder& b) {
      return b.Emit("layer_norm", operands, attributes)[0];
    });
  }
}

TEST(GradientRulesTest, RmsNorm) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {4, 5}),
                weight = check.Parameter("weight", {5});
  Attributes attributes;
  attributes.SetDouble("epsilon", 1e-2);
  check.Run([&](GraphBuilder& b) {
    return b.Emit("rms_norm", {x, weight}, attributes)[0];
  });
}

// --- pointwise --------------------------------------------------------------

TEST(GradientRulesTest, Activations) {
  for (const auto& [op, tanh] : {std::pair<absl::string_view, int>{"gelu", 0},
                                 {"gelu", 1},
                                 {"silu", 0},
                                 {"relu", 0}}) {
    SCOPED_TRACE(std::string(op));
    GradientCheck check;
    const ValueId x = check.Parameter("x", {3, 7});
    check.Run([&, op = op, tanh = tanh](GraphBuilder& b) {
      return b.Emit1(op, {x},
                     op == "gelu" ? Ints({{"tanh", tanh}}) : Attributes());
    });
  }
}

TEST(GradientRulesTest, AddOfOneValueWithItself) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {3, 2});
  check.Run([&](GraphBuilder& b) { return b.Emit1("add", {x, x}); });
}

// gate and up are the two halves of one product, as models lay them out.
TEST(GradientRulesTest, SwigluOfHalves) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {3, 4}),
                w = check.Parameter("w", {10, 4});
  check.Run([&](GraphBuilder& b) {
    const ValueId both = b.Emit1("matmul", {x, w}, Ints({{"transpose_b", 1}}));
    return b.Emit1("swiglu", {b.Slice(both, 1, 0, 5), b.Slice(both, 1, 5, 10)});
  });
  // Straight into the halves: no copy, no zero.
  EXPECT_EQ(check.Count("cast"), 0);
  EXPECT_EQ(check.Count("fill"), 0);
}

TEST(GradientRulesTest, ScaleAndCast) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {3, 2});
  const ValueId factor =
      check.Constant("factor", TensorType(DType::kF32, {}), {0.25});
  Attributes to_f64;
  to_f64.SetString("dtype", "F64");
  check.Run([&](GraphBuilder& b) {
    return b.Emit1("scale", {b.Emit1("cast", {x}, to_f64), factor});
  });
  EXPECT_EQ(check.Count("cast"), 1);  // the forward one: dy passes through
}

TEST(GradientRulesTest, CastBetweenDTypes) {
  Graph graph;
  GraphBuilder b(&graph);
  b.SetPhase("micro");
  const ValueId x = b.Input("x", TensorType(DType::kF32, {2}));
  const ValueId seed = b.Input("seed", TensorType(DType::kBF16, {2}));
  Attributes to_bf16;
  to_bf16.SetString("dtype", "BF16");
  const ValueId y = b.Emit1("cast", {x}, to_bf16);
  ValueId gradient = kNone;
  DifferentiateOptions options;
  options.leaves = {{x, [&](ValueId g) { gradient = g; }}};
  options.seeds = {{y, seed}};
  ASSERT_TRUE(Differentiate(b, options).ok());
  EXPECT_EQ(b.type(gradient).dtype, DType::kF32);
  Interpreter interpreter(graph);
  interpreter.Write(seed, {1.5, -2});
  interpreter.Write(x, {1, 2});
  ASSERT_TRUE(interpreter.Run("micro").ok());
  EXPECT_EQ(interpreter.Read(gradient), (std::vector<double>{1.5, -2}));
}

// --- random -----------------------------------------------------------------

TEST(GradientRulesTest, Dropout) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {3, 8});
  const ValueId ids =
      check.Constant("ids", TensorType(DType::kI64, {3}), {5, 6, 9});
  Attributes attributes = Ints({{"seed", 7}, {"key", 11}});
  attributes.SetDouble("rate", 0.4);
  check.Run([&](GraphBuilder& b) {
    return b.Emit1("dropout", {x, ids, RunStep(b)}, attributes);
  });
  int zeros = 0;
  for (double g : check.gradient("x")) zeros += g == 0;
  EXPECT_GT(zeros, 0);
  EXPECT_LT(zeros, 24);
}

// --- embedding --------------------------------------------------------------

TEST(GradientRulesTest, Embedding) {
  GradientCheck check;
  const ValueId table = check.Parameter("table", {5, 3});
  const ValueId ids =
      check.Constant("ids", TensorType(DType::kI32, {4}), {1, 4, 1, 0});
  check.Run([&](GraphBuilder& b) {
    return b.Emit1("embedding", {ids, table});
  });
}

TEST(GradientRulesTest, RotaryOfColumns) {
  for (const bool llama3 : {false, true}) {
    GradientCheck check;
    const ValueId x = check.Parameter("x", {6, 10});
    Attributes attributes;
    attributes.SetDouble("theta", 100);
    if (llama3) {
      attributes.SetString("rope_type", "llama3");
      attributes.SetDouble("factor", 8);
      attributes.SetDouble("low_freq_factor", 1);
      attributes.SetDouble("high_freq_factor", 4);
      attributes.SetInt("original_max_position", 16);
    }
    check.Run([&](GraphBuilder& b) {
      const ValueId positions =
          b.Emit1("positions",
                  {b.StateField(offsetof(StepState, position),
                                TensorType(DType::kI64, {}))},
                  Ints({{"batch", 2}, {"length", 3}}));
      // Columns [2, 10) of x as [2, 3, 2, 4].
      const ValueId columns = b.View(x, 2, {2, 3, 2, 4}, {30, 10, 4, 1});
      return b.Emit1("rotary", {columns, positions}, attributes);
    });
    // Columns 0 and 1 are used by nothing.
    EXPECT_EQ(check.Count("fill"), 1);
    EXPECT_EQ(check.gradient("x")[10], 0);
  }
}

// --- attention --------------------------------------------------------------

struct AttentionCase {
  int64_t keys = 3;
  int64_t kv_heads = 2;
  bool causal = true;
  bool documents = false;
  double dropout = 0;
};

class AttentionGradientTest : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionGradientTest, MatchesFiniteDifferences) {
  const AttentionCase& p = GetParam();
  GradientCheck check;
  std::vector<ValueId> operands = {
      check.Parameter("q", {2, 3, 2, 4}),
      check.Parameter("k", {2, p.keys, p.kv_heads, 4}),
      check.Parameter("v", {2, p.keys, p.kv_heads, 4})};
  Attributes attributes = Ints({{"causal", p.causal},
                                {"has_documents", p.documents},
                                {"seed", 3},
                                {"key", 4}});
  attributes.SetDouble("dropout", p.dropout);
  if (p.documents) {
    operands.push_back(check.Constant(
        "documents", TensorType(DType::kI32, {2, 3}), {0, 0, 1, 0, 1, 1}));
  }
  if (p.dropout > 0) {
    operands.push_back(
        check.Constant("ids", TensorType(DType::kI64, {2}), {8, 3}));
  }
  check.Run([&](GraphBuilder& b) {
    std::vector<ValueId> all = operands;
    if (p.dropout > 0) all.push_back(RunStep(b));
    return b.Emit("attention", all, attributes)[0];
  });
}

INSTANTIATE_TEST_SUITE_P(
    All, AttentionGradientTest,
    testing::Values(AttentionCase{}, AttentionCase{.kv_heads = 1},
                    AttentionCase{.keys = 5, .causal = false},
                    AttentionCase{.documents = true},
                    AttentionCase{.kv_heads = 1, .dropout = 0.4}));

// q, k and v are columns of one product; their gradients are too.
TEST(GradientRulesTest, AttentionOfOneProduct) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {6, 4}),
                w = check.Parameter("w", {16, 4});
  check.Run([&](GraphBuilder& b) {
    const ValueId qkv = b.Emit1("matmul", {x, w}, Ints({{"transpose_b", 1}}));
    return b.Emit("attention",
                  {b.View(qkv, 0, {2, 3, 2, 4}, {48, 16, 4, 1}),
                   b.View(qkv, 8, {2, 3, 1, 4}, {48, 16, 4, 1}),
                   b.View(qkv, 12, {2, 3, 1, 4}, {48, 16, 4, 1})},
                  Ints({{"causal", 1}}))[0];
  });
  EXPECT_EQ(check.Count("cast"), 0);
  EXPECT_EQ(check.Count("fill"), 0);
}

// --- loss -------------------------------------------------------------------

TEST(GradientRulesTest, CrossEntropyHead) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {5, 4}),
                weight = check.Parameter("weight", {7, 4});
  const ValueId targets = check.Constant(
      "targets", TensorType(DType::kI32, {5}), {3, -100, 0, 6, 3});
  check.Run([&](GraphBuilder& b) {
    return b.Emit1("cross_entropy_head", {x, weight, targets},
                   Ints({{"chunk_rows", 2}}));
  });
  EXPECT_EQ(check.Count("cross_entropy_head"), 0);
  EXPECT_EQ(check.Count("cross_entropy_head_gradient"), 1);
}

// --- collective -------------------------------------------------------------

// The gradient of a BF16 gather is kept and reduced in FP32.
TEST(GradientRulesTest, AllGatherReducesInItsBasesDType) {
  Graph graph;
  graph.groups.push_back({"world", 2, 1});
  GraphBuilder b(&graph);
  b.SetPhase("micro");
  const ValueId shard = b.Input("shard", TensorType(DType::kBF16, {3}));
  const ValueId seed = b.Input("seed", TensorType(DType::kBF16, {6}));
  Attributes group;
  group.SetString("group", "world");
  group.SetInt("size", 2);
  const ValueId full = b.Emit1("all_gather", {shard}, group);
  const ValueId y = b.Emit1("relu", {full});
  ValueId gradient = kNone;
  DifferentiateOptions options;
  options.leaves = {{shard, [&](ValueId g) { gradient = g; }}};
  options.bases = {{.value = full, .required = {{"w", 0, 6}}}};
  options.seeds = {{y, seed}};
  ASSERT_TRUE(Differentiate(b, options).ok());
  EXPECT_EQ(b.type(gradient), TensorType(DType::kF32, {3}));
  EXPECT_EQ(graph.buffer_of(gradient).kind, MemoryKind::kReduceStage);
  const Node& reduce = graph.nodes[graph.phases[0].nodes.back()];
  EXPECT_EQ(reduce.op->name, "reduce_scatter");
  EXPECT_EQ(reduce.attributes, group);
  EXPECT_EQ(reduce.direction, Direction::kBackward);
  EXPECT_EQ(b.type(reduce.operands[0]), TensorType(DType::kF32, {6}));
  EXPECT_EQ(graph.buffer_of(reduce.operands[0]).kind, MemoryKind::kGradient);
}

}  // namespace
}  // namespace shardgraph
