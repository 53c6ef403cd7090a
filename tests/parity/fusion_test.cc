// Fused plans do what the composed ones do, bit for bit.
#include "graph/fusion.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/config/text_config.h"
#include "graph/builder.h"
#include "graph/passes.h"
#include "graph/testing/interpreter.h"
#include "gtest/gtest.h"
#include "kernels/cpu/kernels.h"
#include "kernels/reference/kernels.h"
#include "kernels/status_macros.h"
#include "kernels/testing/conformance.h"
#include "tests/harness/training_run.h"

namespace shardgraph {
namespace {

// Nodes that one pattern replaces, over inputs of the graph; what is compared
// becomes a named output.
struct Chain {
  const char* pattern;
  std::function<void(GraphBuilder& b, DType dtype, int64_t rows,
                     int64_t columns)>
      emit;
  bool product = false;
};

void Output(GraphBuilder& b, absl::Span<const ValueId> values) {
  auto& outputs = b.graph().outputs;
  for (ValueId value : values)
    outputs[absl::StrCat("output", outputs.size())] = value;
}

// Rows of `columns` with a gap behind each.
ValueId Strided(GraphBuilder& b, absl::string_view name, DType dtype,
                int64_t rows, int64_t columns) {
  return b.View(b.Input(name, TensorType(dtype, {rows, columns + 3})), 0,
                {rows, columns}, {columns + 3, 1});
}

// Those of weights and bias, in F32.
void EmitLinearGradients(GraphBuilder& b, DType dtype, int64_t rows,
                         int64_t columns, bool input_major) {
  const ValueId x = b.Input("x", TensorType(dtype, {rows, 19}));
  const ValueId dy = Strided(b, "dy", dtype, rows, columns);
  const Attributes f32 = Attributes().SetString("dtype", "F32");
  Attributes over_rows = f32;
  over_rows.SetInt("transpose_a", 1);
  const ValueId left = input_major ? x : dy, right = input_major ? dy : x;
  Output(b, {b.Emit1("matmul", {left, right}, over_rows),
             b.Emit1("column_sum", {dy}, f32)});
}

// q, k and v of 2 and 1 heads, side by side in rows of a product, or their
// gradients: where they lie.
std::vector<Placement> HeadsOf(GraphBuilder& b, BufferId buffer, DType dtype,
                               int64_t length, int64_t width) {
  const int64_t row = 4 * width;
  std::vector<Placement> heads;
  for (const auto& [count, begin] :
       {std::pair<int64_t, int64_t>{2, 0}, {1, 2}, {1, 3}}) {
    heads.push_back({buffer, begin * width * SizeOf(dtype),
                     TensorType(dtype, {1, length, count, width},
                                {length * row, row, width, 1})});
  }
  return heads;
}

// Attention of one sequence over q and k that were turned, or its gradient.
void EmitRotaryAttention(GraphBuilder& b, DType dtype, int64_t length,
                         int64_t columns, bool gradient) {
  const int64_t width = 2 * (1 + columns % 20);
  const TensorType rows(dtype, {length, 4 * width});
  const ValueId product = b.Input("x", rows);
  const ValueId positions =
      b.Input("positions", TensorType(DType::kI32, {length}));
  std::vector<ValueId> heads;
  for (const Placement& place :
       HeadsOf(b, b.graph().values[product].buffer, dtype, length, width)) {
    heads.push_back(b.View(product, place.offset / SizeOf(dtype),
                           place.type.shape, place.type.strides));
  }
  const Attributes rotary = Attributes().SetDouble("theta", 100);
  const ValueId q = b.Emit1("rotary", {heads[0], positions}, rotary);
  const ValueId k = b.Emit1("rotary", {heads[1], positions}, rotary);
  const Attributes causal = Attributes().SetInt("causal", 1);
  if (!gradient) {
    Output(b, b.Emit("attention", {q, k, heads[2]}, causal));
    return;
  }
  const TensorType out(dtype, {1, length, 2, width});
  const TensorType lse(DType::kF32, {1, 2, length});
  Buffer buffer;
  buffer.name = "gradient";
  buffer.bytes = rows.span_bytes();
  const BufferId place = b.AddBuffer(buffer);
  const std::vector<Placement> to = HeadsOf(b, place, dtype, length, width);
  const auto gradients = b.Emit("attention_gradient",
                                {b.Input("dout", out), q, k, heads[2],
                                 b.Input("out", out), b.Input("lse", lse)},
                                causal, {Placement{}, Placement{}, to[2]});
  Attributes back = rotary;
  back.SetInt("inverse", 1);
  b.Emit1("rotary", {gradients[0], positions}, back, to[0]);
  b.Emit1("rotary", {gradients[1], positions}, back, to[1]);
  Output(b, {b.Current(place, rows, 0)});
}

const std::vector<Chain>& Chains() {
  static const auto& chains = *new std::vector<Chain>{
      {"add_layer_norm",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         const TensorType vector(dtype, {columns});
         const ValueId x = b.Input("x", TensorType(dtype, {rows, columns}));
         for (const bool bias : {false, true}) {
           const ValueId sum =
               b.Emit1("add", {x, Strided(b, "z", dtype, rows, columns)});
           std::vector<ValueId> operands = {sum, b.Input("weight", vector)};
           if (bias) operands.push_back(b.Input("bias", vector));
           Output(b, {sum});
           Output(b, b.Emit("layer_norm", operands,
                            Attributes()
                                .SetDouble("epsilon", 1e-5)
                                .SetInt("bias", bias)));
         }
       }},
      {"add_rms_norm",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         const ValueId x = b.Input("x", TensorType(dtype, {rows, columns}));
         const ValueId sum =
             b.Emit1("add", {Strided(b, "z", dtype, rows, columns), x});
         Output(b, {sum});
         Output(b,
                b.Emit("rms_norm",
                       {sum, b.Input("weight", TensorType(dtype, {columns}))},
                       Attributes().SetDouble("epsilon", 1e-5)));
       }},
      {"matmul_swiglu",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         constexpr int64_t kDepth = 19;
         const ValueId y =
             b.Emit1("matmul",
                     {Strided(b, "x", dtype, rows, kDepth),
                      b.Input("w", TensorType(dtype, {2 * columns, kDepth}))},
                     Attributes().SetInt("transpose_b", 1));
         Output(b, {y});
         Output(b, {b.Emit1("swiglu", {b.Slice(y, 1, 0, columns),
                                       b.Slice(y, 1, columns, 2 * columns)})});
       },
       /*product=*/true},
      {"rotary_attention",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         EmitRotaryAttention(b, dtype, rows, columns, /*gradient=*/false);
       }},
      {"rotary_attention_gradient",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         EmitRotaryAttention(b, dtype, rows, columns, /*gradient=*/true);
       }},
      {"matmul_gelu",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         const ValueId x = Strided(b, "x", dtype, rows, 19);
         for (const bool bias : {false, true}) {
           std::vector<ValueId> operands = {
               x, b.Input("w", TensorType(dtype, {19, columns}))};
           if (bias)
             operands.push_back(b.Input("bias", TensorType(dtype, {columns})));
           const ValueId y =
               b.Emit("matmul", operands, Attributes().SetInt("bias", bias))[0];
           Output(b, {y, b.Emit1("gelu", {y}, Attributes().SetInt("tanh", 1))});
         }
       },
       /*product=*/true},
      {"matmul_gelu_gradient",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         const ValueId dz =
             b.Emit1("matmul",
                     {b.Input("dy", TensorType(dtype, {rows, 19})),
                      b.Input("w", TensorType(dtype, {columns, 19}))},
                     Attributes().SetInt("transpose_b", 1));
         Output(b, {b.Emit1("gelu_gradient",
                            {dz, Strided(b, "y", dtype, rows, columns)},
                            Attributes().SetInt("tanh", 1))});
       },
       /*product=*/true},
      {"matmul_column_sum",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         EmitLinearGradients(b, dtype, rows, columns, /*input_major=*/false);
       }},
      {"matmul_column_sum_input_major",
       [](GraphBuilder& b, DType dtype, int64_t rows, int64_t columns) {
         EmitLinearGradients(b, dtype, rows, columns, /*input_major=*/true);
       }},
  };
  return chains;
}

std::vector<std::string> Outputs(const Graph& graph,
                                 const KernelTable& kernels) {
  Interpreter interpreter(graph, kernels);
  uint64_t seed = 1;
  for (const auto& [name, value] : graph.inputs) {
    interpreter.Write(
        value,
        UniformValues(graph.values[value].type.num_elements(), -2, 2, seed++));
  }
  SG_CHECK_OK(interpreter.Run("p"));
  std::vector<std::string> outputs;
  for (const auto& [name, value] : graph.outputs)
    outputs.push_back(interpreter.Bytes(value));
  return outputs;
}

TEST(Fusion, FusedEqualsComposed) {
  for (const Chain& chain : Chains()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto& [rows, columns] :
           {std::pair<int64_t, int64_t>{1, 1}, {3, 16}, {33, 259}}) {
        SCOPED_TRACE(absl::StrCat(chain.pattern, " ", DTypeName(dtype), " [",
                                  rows, ",", columns, "]"));
        Graph graph;
        GraphBuilder b(&graph);
        b.SetPhase("p");
        chain.emit(b, dtype, rows, columns);
        const auto composed = Outputs(graph, CpuKernels());
        const auto composed_reference = Outputs(graph, ReferenceKernels());
        const FusionPattern* pattern = nullptr;
        for (const FusionPattern& p : FusionPatterns()) {
          if (p.name == chain.pattern) pattern = &p;
        }
        ASSERT_NE(pattern, nullptr);
        const size_t nodes = graph.phases[0].nodes.size();
        const int fused = Fuse(graph, 0, *pattern);
        ASSERT_GT(fused, 0);
        const std::string all(kAllFusions);  // drops what nobody reads
        SG_CHECK_OK(Lower(graph, TargetSpec(), nullptr, {all}));
        // Nothing is left of what a pattern replaces.
        EXPECT_EQ(graph.phases[0].nodes.size(), static_cast<size_t>(fused));
        EXPECT_LT(static_cast<size_t>(fused), nodes);
        // The CPU leaves products in F16 to the reference, fused ones too, but
        // not the functions behind them.
        if (dtype != DType::kF16 || !chain.product) {
          EXPECT_EQ(Outputs(graph, CpuKernels()), composed);
        }
        EXPECT_EQ(Outputs(graph, ReferenceKernels()), composed_reference);
      }
    }
  }
}

TEST(Fusion, EveryPatternHasAChain) {
  std::set<std::string> patterns, chains;
  for (const FusionPattern& pattern : FusionPatterns())
    patterns.insert(std::string(pattern.name));
  for (const Chain& chain : Chains()) chains.insert(chain.pattern);
  EXPECT_EQ(chains, patterns);
}

constexpr char kGpt2[] =
    R"(gpt2 { vocab_size: 131 n_positions: 16 n_embd: 36 n_layer: 3 n_head: 3
       resid_pdrop: 0 embd_pdrop: 0 attn_pdrop: 0.1 initializer_range: 0.15 })";
constexpr char kLlama[] =
    R"(llama { vocab_size: 131 hidden_size: 36 intermediate_size: 50
       num_hidden_layers: 3 num_attention_heads: 6 num_key_value_heads: 2
       max_position_embeddings: 16 initializer_range: 0.15 })";

// Whether a node is what the pattern makes.
bool IsOf(const Node& node, const FusionPattern& pattern) {
  const FusionNode by = ParseFusion(pattern).by;
  const auto& has = node.attributes.entries();
  const auto& wanted = by.attributes.entries();
  return node.op == by.op &&
         std::all_of(wanted.begin(), wanted.end(), [&](const auto& attribute) {
           return std::find(has.begin(), has.end(), attribute) != has.end();
         });
}

// Steps of fused plans give the losses and weights of composed ones.
TEST(Fusion, TrainingIsTheSame) {
  for (const char* model : {kGpt2, kLlama}) {
    for (const char* compute : {"FP32", "BF16"}) {
      for (const char* recompute : {"NONE", "FULL"}) {
        SCOPED_TRACE(absl::StrCat(model, " ", compute, " ", recompute));
        TrainConfig config;
        SG_CHECK_OK(ParseTextConfig(
            absl::StrCat("model { ", model, " } precision { compute: ", compute,
                         " } shard { recompute: ", recompute, R"( }
                         optimizer { learning_rate: 0.01 }
                         schedule { kind: CONSTANT }
                         data { batch_size: 4 sequence_length: 16
                                micro_batch_size: 2 }
                         run { steps: 3 seed: 7 })"),
            "test", &config));
        TrainingRunOptions options;
        options.world_size = 2;
        for (const std::string& name : FusionsByTarget())
          options.target.add_fusions(name);
        std::set<std::string> fused, ops;
        options.after_step = [&](int rank, int64_t step, Executor&,
                                 const TrainingPlan& plan) {
          if (rank != 0 || step != 0) return;
          for (const Phase& phase : plan.plan.graph.phases) {
            for (NodeId id : phase.nodes) {
              ops.insert(std::string(plan.plan.graph.nodes[id].op->name));
              for (const FusionPattern& pattern : FusionPatterns()) {
                if (IsOf(plan.plan.graph.nodes[id], pattern))
                  fused.insert(std::string(pattern.name));
              }
            }
          }
        };
        const auto run = RunTraining(config, options);
        SG_CHECK_OK(run);
        EXPECT_EQ(fused.count("rotary_attention"), model == kLlama);
        EXPECT_EQ(fused.count("rotary_attention_gradient"), model == kLlama);
        EXPECT_EQ(fused.count("add_layer_norm"), model == kGpt2);
        // What fused nodes do themselves is not done for nobody.
        EXPECT_EQ(ops.count("rotary"), 0);
        config.mutable_run()->add_unfused("all");
        fused.clear();
        ops.clear();
        const auto composed = RunTraining(config, options);
        SG_CHECK_OK(composed);
        EXPECT_TRUE(fused.empty());
        EXPECT_EQ(ops.count("rotary"), model == kLlama);
        EXPECT_EQ(run->losses, composed->losses);
        EXPECT_EQ(run->gradient_norms, composed->gradient_norms);
        EXPECT_EQ(run->weights, composed->weights);
      }
    }
  }
}

TEST(Fusion, NamesThePatternsThereAre) {
  TrainConfig config;
  SG_CHECK_OK(ParseTextConfig(
      absl::StrCat("model { ", kGpt2, " } run { steps: 1 unfused: \"add\" }"),
      "test", &config));
  const auto run = RunTraining(config, {});
  EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StartsWith(
      run.status().message(),
      "run.unfused: there is no fusion pattern \"add\"; give names of all, "
      "add_layer_norm, "))
      << run.status();
}

}  // namespace
}  // namespace shardgraph
