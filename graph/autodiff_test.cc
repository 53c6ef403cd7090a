#include "graph/autodiff.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "graph/builder.h"
#include "graph/passes.h"
#include "graph/test_graph.h"
#include "graph/testing/gradient_check.h"
#include "graph/testing/interpreter.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using testing::HasSubstr;

Attributes Transposed() { return Attributes().SetInt("transpose_b", 1); }
Attributes Epsilon() { return Attributes().SetDouble("epsilon", 1e-2); }
Attributes World(int64_t size) {
  return Attributes().SetString("group", "world").SetInt("size", size);
}
Attributes Chunk() { return Attributes().SetInt("chunk_rows", 4); }

std::vector<std::string> Ops(const Graph& graph, absl::string_view phase) {
  std::vector<std::string> ops;
  for (NodeId id : graph.phases[graph.FindPhase(phase)].nodes)
    ops.emplace_back(graph.nodes[id].op->name);
  return ops;
}

// --- Ties -------------------------------------------------------------------

// A table that is embedding and head, gathered from BF16 shards: one flat FP32
// gradient, which the head writes and the embedding adds to.
class TiedTest : public testing::Test {
 protected:
  TiedTest() : b_(&graph_) {
    graph_.groups.push_back({"world", 2, 1});
    b_.SetPhase("micro");
    b_.SetScope("model");
    shard_ = b_.Input("shard", TensorType(DType::kBF16, {16}));
    full_ = b_.Emit1("all_gather", {shard_}, World(2));
    table_ = b_.View(full_, 0, {7, 4}, {4, 1});
    const ValueId ids = b_.Input("ids", TensorType(DType::kI32, {3}));
    const ValueId targets = b_.Input("targets", TensorType(DType::kI32, {3}));
    b_.SetScope("model.embedding");
    const ValueId x = b_.Emit1("embedding", {ids, table_});
    b_.SetScope("head");
    stats_ = b_.Emit1("cross_entropy_head", {x, table_, targets}, Chunk());
    options_.leaves = {{shard_, [this](ValueId g) { gradient_ = g; }}};
    options_.bases = {{.value = full_,
                       .dtype = DType::kF32,
                       .kind = MemoryKind::kGradient,
                       .alignment = 4096,
                       .required = {{"wte", 0, 28}}}};
  }

  Graph graph_;
  GraphBuilder b_;
  ValueId shard_, full_, table_, stats_, gradient_ = kNone;
  DifferentiateOptions options_;
};

TEST_F(TiedTest, GoldenText) {
  ASSERT_TRUE(Differentiate(b_, options_).ok());
  std::vector<std::string> lines;
  for (NodeId id : graph_.phases[0].nodes)
    lines.push_back(PrintNode(graph_, id));
  EXPECT_EQ(absl::StrJoin(lines, "\n"),
            R"(%1 = all_gather(%0) group=world size=2 : BF16[32] @model forward
%5 = embedding(%3, %2) : BF16[3,4] @model.embedding forward
%9, %10, %11 = cross_entropy_head_gradient(%5, %2, %4, %7, %8) chunk_rows=4 dtype=F32 : F64[2], BF16[3,4], F32[7,4] @head backward
%12 = embedding_gradient(%3, %10, %11) accumulate=1 dtype=F32 rows=7 : F32[7,4] @model.embedding backward
%14 = reduce_scatter(%13) group=world size=2 : F32[16] @model backward)");
}

TEST_F(TiedTest, OneBufferHoldsBothContributions) {
  ASSERT_TRUE(Differentiate(b_, options_).ok());
  std::vector<const Value*> written;
  for (NodeId id : graph_.phases[0].nodes) {
    const Node& node = graph_.nodes[id];
    if (node.op->name == "cross_entropy_head_gradient")
      written.push_back(&graph_.values[node.results[2]]);
    if (node.op->name == "embedding_gradient")
      written.push_back(&graph_.values[node.results[0]]);
  }
  ASSERT_EQ(written.size(), 2u);
  EXPECT_EQ(written[0]->buffer, written[1]->buffer);
  EXPECT_EQ(written[0]->offset, written[1]->offset);
  EXPECT_EQ(written[1]->version, written[0]->version + 1);
  const Buffer& buffer = graph_.buffers[written[0]->buffer];
  EXPECT_EQ(buffer.kind, MemoryKind::kGradient);
  EXPECT_EQ(buffer.alignment, 4096);
  EXPECT_EQ(buffer.bytes, 32 * 4);  // padding included
  EXPECT_EQ(b_.type(gradient_), TensorType(DType::kF32, {16}));
}

TEST(AutodiffTest, TiedTableMatchesFiniteDifferences) {
  GradientCheck check;
  const ValueId table = check.Parameter("table", {5, 4});
  const ValueId ids =
      check.Constant("ids", TensorType(DType::kI32, {3}), {4, 1, 4});
  const ValueId targets =
      check.Constant("targets", TensorType(DType::kI32, {3}), {0, 4, -100});
  check.Run([&](GraphBuilder& b) {
    const ValueId x = b.Emit1("embedding", {ids, table});
    return b.Emit1("cross_entropy_head", {x, table, targets}, Chunk());
  });
  EXPECT_EQ(check.Count("fill"), 0);
  EXPECT_EQ(check.Count("cast"), 0);
}

// --- Loss -------------------------------------------------------------------

TEST_F(TiedTest, ReadersOfTheLossReadItsReplacement) {
  const ValueId sum = b_.View(stats_, 0, {}, {});
  const ValueId whole =
      b_.Emit1("cast", {stats_}, Attributes().SetString("dtype", "F32"));
  const ValueId part =
      b_.Emit1("cast", {sum}, Attributes().SetString("dtype", "F32"));
  graph_.outputs["stats"] = stats_;
  ASSERT_TRUE(Differentiate(b_, options_).ok());
  const std::vector<std::string> ops = Ops(graph_, "micro");
  EXPECT_EQ(std::vector<std::string>(ops.begin(), ops.begin() + 5),
            (std::vector<std::string>{"all_gather", "embedding",
                                      "cross_entropy_head_gradient", "cast",
                                      "cast"}));
  const NodeId head = graph_.phases[0].nodes[2];
  const ValueId now = graph_.nodes[head].results[0];
  EXPECT_EQ(graph_.nodes[graph_.values[whole].producer].operands[0], now);
  EXPECT_EQ(graph_.nodes[graph_.values[part].producer].operands[0], sum);
  EXPECT_EQ(graph_.values[sum].producer, head);
  EXPECT_EQ(graph_.values[sum].base, now);
  EXPECT_EQ(graph_.outputs["stats"], now);
  EXPECT_EQ(graph_.values[now].buffer, graph_.values[stats_].buffer);
}

// --- Shared gradients -------------------------------------------------------

// Each x has two uses, the norm adds to the residual stream's gradient in
// place: one buffer from the top to the bottom. A third use, a long skip,
// shares the gradient: it costs two additions.
TEST(AutodiffTest, ResidualStreamIsOneBuffer) {
  for (const bool skip : {false, true}) {
    GradientCheck check;
    const ValueId x0 = check.Parameter("x", {3, 4});
    const ValueId norm = check.Parameter("norm", {4});
    const ValueId w = check.Parameter("w", {4, 4});
    const ValueId up = check.Parameter("up", {6, 4});
    const ValueId down = check.Parameter("down", {4, 6});
    check.Run([&](GraphBuilder& b) {
      const ValueId x = b.Emit1("gelu", {x0});
      const ValueId n1 = b.Emit("rms_norm", {x, norm}, Epsilon())[0];
      const ValueId x1 =
          b.Emit1("add", {x, b.Emit1("matmul", {n1, w}, Transposed())});
      const ValueId n2 = b.Emit("rms_norm", {x1, norm}, Epsilon())[0];
      const ValueId h =
          b.Emit1("gelu", {b.Emit1("matmul", {n2, up}, Transposed())});
      ValueId x2 =
          b.Emit1("add", {x1, b.Emit1("matmul", {h, down}, Transposed())});
      if (skip) x2 = b.Emit1("add", {x2, x});
      return b.Emit1("gelu", {x2});  // so that x2's gradient is not the seed
    });
    EXPECT_EQ(check.Count("add"), skip ? 3 : 2);  // those of forward
    EXPECT_EQ(check.Count("cast"), skip ? 2 : 0);
    EXPECT_EQ(check.Count("fill"), 0);
  }
}

// The gradient of an `add` is shared by leaves: none may change what another
// reads, and the seed stays.
TEST(AutodiffTest, SharedGradientsAreNotOverwritten) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {3, 4}),
                y = check.Parameter("y", {3, 4});
  const ValueId weight = check.Parameter("weight", {4});
  check.Run([&](GraphBuilder& b) {
    const ValueId n = b.Emit("rms_norm", {x, weight}, Epsilon())[0];
    return b.Emit1("add", {n, b.Emit1("add", {x, y})});
  });
  EXPECT_EQ(check.interpreter().Read(check.options.seeds[0].gradient),
            RandomElements(12, 99));
  EXPECT_EQ(check.gradient("y"), RandomElements(12, 99));
}

// A leaf's gradient stays what its consumer was given, though what comes before
// the leaf goes on with the same value.
TEST(AutodiffTest, GradientOfALeafInTheMiddleStays) {
  std::vector<std::string> seen;
  for (const bool further : {false, true}) {
    Graph graph;
    GraphBuilder b(&graph);
    b.SetPhase("micro");
    const TensorType type(DType::kF64, {2, 4});
    const ValueId p = b.Input("p", type), seed = b.Input("seed", type);
    const ValueId w = b.Input("w", TensorType(DType::kF64, {4}));
    const ValueId a = b.Emit1("gelu", {p});
    const ValueId n =
        b.Emit1("gelu", {b.Emit("rms_norm", {a, w}, Epsilon())[0]});
    const ValueId v = b.Emit1("add", {a, n});
    ValueId gradient = kNone;
    DifferentiateOptions options;
    options.leaves = {{v, [&](ValueId g) { gradient = g; }}};
    if (further) options.leaves.push_back({p, [](ValueId) {}});
    options.seeds = {{b.Emit1("gelu", {v}), seed}};
    ASSERT_TRUE(Differentiate(b, options).ok());
    Interpreter interpreter(graph);
    interpreter.Write(p, RandomElements(8, 1));
    interpreter.Write(seed, RandomElements(8, 2));
    interpreter.Write(w, RandomElements(4, 3));
    ASSERT_TRUE(interpreter.Run("micro").ok());
    seen.push_back(interpreter.Bytes(gradient));
  }
  EXPECT_EQ(seen[0], seen[1]);
}

// --- Views ------------------------------------------------------------------

TEST(AutodiffTest, OverlappingViewsAddUp) {
  GradientCheck check;
  const ValueId flat = check.Parameter("flat", {40});
  const ValueId x = check.Parameter("x", {3, 4});
  check.Run([&](GraphBuilder& b) {
    // A stacked block, one of its members, and a piece across both.
    const ValueId block = b.View(flat, 4, {6, 4}, {4, 1});
    const ValueId member = b.View(flat, 12, {4, 4}, {4, 1});
    const ValueId piece = b.View(flat, 0, {4, 4}, {4, 1});
    const ValueId all = b.Emit1("matmul", {x, block}, Transposed());
    const ValueId some = b.Emit1("matmul", {x, member}, Transposed());
    const ValueId other = b.Emit1("matmul", {x, piece}, Transposed());
    const ValueId sum = b.Emit1("add", {b.Slice(all, 1, 0, 4), some});
    const ValueId more = b.Emit1("add", {b.Slice(all, 1, 2, 6), sum});
    return b.Emit1("add", {more, other});
  });
  EXPECT_EQ(check.gradient("flat")[39], 0);
}

// Two products write the halves of one buffer, which is read whole and by half.
TEST(AutodiffTest, ValuesWrittenInParts) {
  GradientCheck check;
  const ValueId x = check.Parameter("x", {3, 4});
  const ValueId w = check.Parameter("w", {2, 4}),
                v = check.Parameter("v", {3, 4});
  check.Run([&](GraphBuilder& b) {
    Buffer buffer;
    buffer.name = "both";
    buffer.bytes = 15 * 8;
    const BufferId both = b.AddBuffer(buffer);
    const ValueId left =
        b.Emit1("matmul", {x, w}, Transposed(),
                {both, 0, TensorType(DType::kF64, {3, 2}, {5, 1})});
    b.Emit1("matmul", {x, v}, Transposed(),
            {both, 16, TensorType(DType::kF64, {3, 3}, {5, 1})});
    const ValueId whole = b.Current(both, TensorType(DType::kF64, {3, 5}), 0);
    return b.Emit1("add", {b.Slice(b.Emit1("gelu", {whole}), 1, 1, 3), left});
  });
}

// --- Unused parameters ------------------------------------------------------

class UnusedTest : public testing::Test {
 protected:
  // A flat parameter of a [2, 3] and b [3], of which the loss uses a only.
  UnusedTest() : b_(&graph_) {
    graph_.groups.push_back({"world", 1, 1});
    b_.SetPhase("micro");
    const ValueId shard = b_.Input("shard", TensorType(DType::kF32, {12}));
    full_ = b_.Emit1("all_gather", {shard}, World(1));
    const ValueId x = b_.Input("x", TensorType(DType::kF32, {4, 3}));
    targets_ = b_.Input("targets", TensorType(DType::kI32, {4}));
    b_.Emit1("cross_entropy_head",
             {x, b_.View(full_, 0, {2, 3}, {3, 1}), targets_}, Chunk());
    options_.leaves = {{shard, [this](ValueId g) { gradient_ = g; }}};
    options_.bases = {
        {.value = full_, .required = {{"mlp.a", 0, 6}, {"mlp.b", 8, 3}}}};
  }

  Graph graph_;
  GraphBuilder b_;
  ValueId full_, targets_, gradient_ = kNone;
  DifferentiateOptions options_;
};

TEST_F(UnusedTest, IsAnErrorThatNamesTheParameter) {
  const absl::Status status = Differentiate(b_, options_);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("mlp.b"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("freeze"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("allow_unused"));
}

TEST_F(UnusedTest, IsZeroOnRequestAndPaddingIsNotWritten) {
  options_.zero_unused = true;
  ASSERT_TRUE(Differentiate(b_, options_).ok());
  const Node& reduce = graph_.nodes[graph_.phases[0].nodes.back()];
  ASSERT_EQ(reduce.op->name, "reduce_scatter");
  EXPECT_EQ(gradient_, reduce.results[0]);
  std::vector<std::string> writes;
  for (NodeId id : graph_.phases[0].nodes) {
    for (ValueId v : graph_.nodes[id].results) {
      const Value& value = graph_.values[v];
      if (value.buffer != graph_.values[reduce.operands[0]].buffer) continue;
      writes.push_back(absl::StrCat(std::string(graph_.nodes[id].op->name), " ",
                                    value.begin() / 4, " ", value.end() / 4));
    }
  }
  EXPECT_EQ(writes, (std::vector<std::string>{"cross_entropy_head_gradient 0 6",
                                              "fill 8 11"}));
}

// A parameter of which only some rows are used is no unused parameter.
TEST(AutodiffTest, PartlyUsedParameterGetsZerosElsewhere) {
  GradientCheck check;
  check.options.zero_unused = false;
  const ValueId table = check.Parameter("table", {5, 3});
  check.Run([&](GraphBuilder& b) {
    return b.Emit1("gelu", {b.Slice(table, 0, 1, 3)});
  });
  EXPECT_EQ(check.gradient("table")[0], 0);
  EXPECT_EQ(check.gradient("table")[14], 0);
  // The rows before and after: nothing is written twice.
  EXPECT_EQ(check.Count("fill"), 2);
}

TEST_F(UnusedTest, WholeUnitUnused) {
  const ValueId other = b_.Input("other", TensorType(DType::kF32, {4}));
  b_.SetInsertionPoint(0);
  const ValueId whole = b_.Emit1("all_gather", {other}, World(1));
  b_.SetInsertionPoint(kNone);
  ValueId gradient = kNone;
  options_.leaves.push_back({other, [&](ValueId g) { gradient = g; }});
  options_.bases[0].required.pop_back();
  options_.bases.push_back({.value = whole, .required = {{"spare.c", 0, 4}}});
  options_.zero_unused = true;
  ASSERT_TRUE(Differentiate(b_, options_).ok());
  ASSERT_NE(gradient, kNone);
  const Node& reduce = graph_.nodes[graph_.values[gradient].producer];
  const Node& fill = graph_.nodes[graph_.values[reduce.operands[0]].producer];
  EXPECT_EQ(fill.op->name, "fill");
  EXPECT_EQ(b_.type(reduce.operands[0]), TensorType(DType::kF32, {4}));
}

// --- Frozen parameters ------------------------------------------------------

TEST(AutodiffTest, FrozenParametersCostNothing) {
  GradientCheck check;
  const ValueId x = check.Constant("x", TensorType(DType::kF64, {2, 3}),
                                   RandomElements(6, 1));
  const ValueId frozen = check.Constant(
      "frozen", TensorType(DType::kF64, {3, 3}), RandomElements(9, 2));
  const ValueId w = check.Parameter("w", {3, 3});
  check.Run([&](GraphBuilder& b) {
    const ValueId h = b.Emit1("matmul", {x, frozen});
    return b.Emit1("matmul", {b.Emit1("matmul", {h, w}), frozen});
  });
  // Three in forward; backward: through the last, and the gradient of w.
  EXPECT_EQ(check.Count("matmul"), 3 + 2);
}

// Nothing is computed for a frozen input, norm or head.
TEST(AutodiffTest, FrozenOperandsOfFusedGradientsAreLeftOut) {
  for (int trained = 1; trained < 8; ++trained) {
    GradientCheck check;
    const auto make = [&](int bit, const char* name, Dims shape) {
      if ((trained >> bit & 1) != 0) return check.Parameter(name, shape);
      return check.Constant(name, TensorType(DType::kF64, shape),
                            RandomElements(NumElements(shape), bit));
    };
    const ValueId x = make(0, "x", {3, 4}), norm = make(1, "norm", {4}),
                  head = make(2, "head", {5, 4});
    const ValueId targets =
        check.Constant("targets", TensorType(DType::kI32, {3}), {0, 4, -100});
    check.Run([&](GraphBuilder& b) {
      const ValueId y = b.Emit("rms_norm", {x, norm}, Epsilon())[0];
      return b.Emit1("cross_entropy_head", {y, head, targets}, Chunk());
    });
    const bool norm_trained = (trained & 0b11) != 0;
    EXPECT_EQ(check.Count("rms_norm_gradient"), norm_trained ? 1 : 0);
    for (const Node& node : check.graph().nodes) {
      const int64_t omit = node.attributes.Int("omit");
      if (node.op->name == "rms_norm_gradient") {
        EXPECT_EQ(omit, ~trained & 0b11) << trained;
      } else if (node.op->name == "cross_entropy_head_gradient") {
        EXPECT_EQ(omit, (norm_trained ? 0 : 0b010) |
                            ((trained & 0b100) != 0 ? 0 : 0b100))
            << trained;
      }
    }
  }
}

// --- Order ------------------------------------------------------------------

// Each unit's gradient is consumed before backward of the unit before it
// starts.
TEST(AutodiffTest, LeavesAreConsumedAsEarlyAsPossible) {
  Graph graph;
  graph.groups.push_back({"world", 1, 1});
  GraphBuilder b(&graph);
  b.SetPhase("micro");
  ValueId x = b.Input("x", TensorType(DType::kF32, {2, 3}));
  const ValueId seed = b.Input("seed", TensorType(DType::kF32, {2, 3}));
  DifferentiateOptions options;
  std::vector<std::string> consumed;
  for (int unit = 0; unit < 2; ++unit) {
    b.SetUnit(b.AddUnit(absl::StrCat("layer", unit)));
    b.SetScope(absl::StrCat("layer", unit));
    const ValueId shard =
        b.Input(absl::StrCat("shard", unit), TensorType(DType::kF32, {9}));
    const ValueId full = b.Emit1("all_gather", {shard}, World(1));
    x = b.Emit1("gelu", {b.Emit1("matmul", {x, b.Reshape(full, {3, 3})})});
    options.bases.push_back({.value = full, .required = {{"w", 0, 9}}});
    options.leaves.push_back(
        {shard, [&](ValueId g) {
           const auto& nodes = graph.phases[0].nodes;
           EXPECT_EQ(graph.values[g].producer, nodes.back());
           EXPECT_EQ(b.direction(), Direction::kBackward);
           consumed.push_back(
               absl::StrCat(b.scope(), " ", b.unit(), " ", nodes.size()));
         }});
  }
  options.seeds = {{x, seed}};
  b.SetScope("outside");
  ASSERT_TRUE(Differentiate(b, options).ok());
  // Forward has 6 nodes; layer 1: gelu, two products, reduction; layer 0 has no
  // product for x.
  EXPECT_EQ(consumed, (std::vector<std::string>{"layer1 1 10", "layer0 0 13"}));
  for (size_t i = 6; i < 13; ++i) {
    const Node& node = graph.nodes[graph.phases[0].nodes[i]];
    EXPECT_EQ(node.direction, Direction::kBackward);
    EXPECT_EQ(node.unit, i < 10 ? 1 : 0);
    EXPECT_EQ(std::string(graph.scope_of(node)), i < 10 ? "layer1" : "layer0");
  }
  EXPECT_EQ(b.scope(), "outside");
  EXPECT_EQ(b.direction(), Direction::kForward);
}

// --- Errors -----------------------------------------------------------------

TEST(AutodiffTest, Errors) {
  const auto differentiate =
      [](std::function<void(GraphBuilder&, ValueId)> emit) {
        Graph graph;
        GraphBuilder b(&graph);
        b.SetPhase("micro");
        const ValueId x = b.Input("x", TensorType(DType::kF32, {4, 3}));
        emit(b, x);
        DifferentiateOptions options;
        options.leaves = {{x, [](ValueId) {}}};
        return Differentiate(b, options);
      };
  const auto head = [](GraphBuilder& b, ValueId x) {
    const ValueId w = b.Input("w", TensorType(DType::kF32, {2, 3}));
    const ValueId targets = b.Input("targets", TensorType(DType::kI32, {4}));
    b.Emit1("cross_entropy_head", {x, w, targets}, Chunk());
  };
  EXPECT_TRUE(differentiate(head).ok());
  EXPECT_THAT(differentiate([](GraphBuilder& b, ValueId x) {
                b.Emit1("gelu", {x});
              }).ToString(),
              HasSubstr("phase micro has no loss"));
  EXPECT_THAT(differentiate([&](GraphBuilder& b, ValueId x) {
                head(b, x);
                head(b, x);
              }).ToString(),
              HasSubstr("2 losses"));
  EXPECT_THAT(
      differentiate([&](GraphBuilder& b, ValueId x) {
        head(b, b.Reshape(b.Emit1("all_to_all", {b.Reshape(x, {12})}, World(1)),
                          {4, 3}));
      }).ToString(),
      HasSubstr("op all_to_all has no gradient rule"));
  EXPECT_THAT(differentiate([&](GraphBuilder& b, ValueId x) {
                head(b, b.Emit1("all_reduce", {x}, World(1)));
              }).ToString(),
              HasSubstr("in place"));
  // A node without a rule beside the path to the loss does not matter.
  EXPECT_TRUE(differentiate([&](GraphBuilder& b, ValueId x) {
                b.Emit1("all_to_all", {b.Reshape(x, {12})}, World(1));
                head(b, x);
              }).ok());
}

// --- Random graphs ----------------------------------------------------------

// Products, norms, sums and views of views, each value used any number of
// times: every way a contribution can land.
TEST(AutodiffTest, RandomGraphsMatchFiniteDifferences) {
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(trial);
    GradientCheck check;
    const ValueId x = check.Parameter("x", {3, 6});
    const ValueId flat = check.Parameter("flat", {60});
    const ValueId norm = check.Parameter("norm", {6});
    check.Run(
        [&](GraphBuilder& b) {
          std::mt19937 random(trial);
          const auto pick = [&](int64_t n) {
            return static_cast<int64_t>(random() % n);
          };
          std::vector<ValueId> values = {x, b.View(flat, 5, {3, 6}, {6, 1})};
          std::vector<ValueId> wide;  // [3, 12]
          for (int i = 0; i < 9; ++i) {
            const ValueId a = values[pick(values.size())];
            const ValueId c = values[pick(values.size())];
            switch (pick(8)) {
              case 0:
              case 1:
                values.push_back(b.Emit1("add", {a, c}));
                break;
              case 2:
                values.push_back(b.Emit1("gelu", {a}));
                break;
              case 3:
                values.push_back(b.Emit("rms_norm", {a, norm}, Epsilon())[0]);
                break;
              case 4:
                values.push_back(b.Emit1(
                    "matmul",
                    {a, b.View(flat, pick(20), {6, 6}, {6 + pick(2), 1})}));
                break;
              case 5:
                wide.push_back(b.Emit1(
                    "matmul",
                    {b.Slice(a, 1, 0, 5), b.View(flat, 0, {12, 5}, {5, 1})},
                    Transposed()));
                break;
              case 6:
                values.push_back(b.Emit1("swiglu", {a, c}));
                break;
              case 7:
                if (!wide.empty()) {
                  const ValueId w = wide[pick(wide.size())];
                  const int64_t begin = pick(3) * 3;
                  values.push_back(b.Slice(w, 1, begin, begin + 6));
                }
                break;
            }
          }
          ValueId sum = values.back();
          for (size_t i = 2; i + 1 < values.size(); i += 2)
            sum = b.Emit1("add", {sum, values[i]});
          return b.Emit1("add", {sum, sum});
        },
        1e-5);
    // No contribution is lost or read before it is there, whatever the values.
    Graph graph = check.graph();
    ASSERT_TRUE(Lower(graph, TargetSpec(), nullptr).ok());
    const absl::Status verified = Verify(MakePlan(graph, 1));
    EXPECT_TRUE(verified.ok()) << verified;
  }
}

}  // namespace
}  // namespace shardgraph
