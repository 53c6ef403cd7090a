#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/substitute.h"
#include "gmock/gmock.h"
#include "graph/model/module.h"
#include "graph/model/testing/model_text.h"
#include "graph/model/testing/plain_parameters.h"
#include "gtest/gtest.h"
#include "kernels/random/random.h"

namespace shardgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGpt2[] =
    "gpt2 { vocab_size: 131 n_positions: 32 n_embd: 12 n_head: 3 n_layer: 1 "
    "layer_norm_epsilon: 0.5 embd_pdrop: 0.5 attn_pdrop: 0.25 resid_pdrop: "
    "0.125 }";
constexpr char kLlama[] =
    "llama { vocab_size: 131 hidden_size: 12 intermediate_size: 20 "
    "num_hidden_layers: 1 num_attention_heads: 3 num_key_value_heads: 1 "
    "max_position_embeddings: 64 rms_norm_eps: 0.5 }";

// Emits into one phase and keeps what came of it.
struct Emission {
  explicit Emission(const std::string& spec, bool stacked = true)
      : model(ModelFromText(spec)),
        builder(&graph),
        parameters(builder, *model, DType::kF32, stacked) {}

  absl::StatusOr<ForwardResult> Emit(const std::string& phase,
                                     ForwardOptions options) {
    builder.SetPhase(phase);
    options.compute = DType::kF32;
    return model->Emit(builder, parameters, options);
  }

  // The nodes of a phase, one a line: "scope: op(operands) attributes ->
  // shape of the first result". An operand is its buffer, with its offset in
  // bytes and its type where it is a part of it.
  std::string Text(const std::string& phase) const {
    std::string text;
    for (NodeId id : graph.phases[graph.FindPhase(phase)].nodes) {
      const Node& node = graph.node(id);
      const auto name = [&](std::string* out, ValueId value) {
        const Buffer& buffer = graph.buffer_of(value);
        absl::StrAppend(out, buffer.name);
        if (graph.value(value).type.num_elements() *
                SizeOf(graph.value(value).type.dtype) !=
            buffer.bytes) {
          absl::StrAppend(out, "+", graph.value(value).offset, ":",
                          graph.value(value).type.ToString());
        }
      };
      absl::StrAppend(&text, graph.scope_of(node), ": ", node.op->name, "(",
                      absl::StrJoin(node.operands, ", ", name), ") ");
      if (const std::string attributes = node.attributes.ToString();
          !attributes.empty()) {
        absl::StrAppend(&text, attributes, " ");
      }
      absl::StrAppend(&text, "-> ",
                      graph.value(node.results[0]).type.ToString(), "\n");
    }
    return text;
  }

  // The ops of a phase in order.
  std::vector<std::string> Ops(const std::string& phase) const {
    std::vector<std::string> ops;
    for (NodeId id : graph.phases[graph.FindPhase(phase)].nodes) {
      ops.emplace_back(graph.node(id).op->name);
    }
    return ops;
  }

  std::unique_ptr<Model> model;
  Graph graph;
  GraphBuilder builder;
  PlainParameters parameters;
};

TEST(EmitTest, Gpt2InTraining) {
  Emission emission(kGpt2);
  const auto result = emission.Emit(
      "micro",
      {.mode = ForwardMode::kTrain, .batch = 2, .length = 4, .seed = 7});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(emission.builder.type(result->stats), TensorType(DType::kF64, {2}));
  EXPECT_EQ(result->logits, kNone);
  const auto key = [](absl::string_view site) {
    return static_cast<int64_t>(HashName(site));
  };
  EXPECT_EQ(emission.Text("micro"),
            absl::Substitute(
                R"(: positions(step_state+16:I64[]) batch=2 length=4 -> I32[8]
transformer.wte: embedding(input/tokens, transformer.wte.weight) -> F32[8,12]
transformer.wpe: embedding(/positions, transformer.wpe.weight) -> F32[8,12]
transformer.wpe: add(transformer.wte/embedding, transformer.wpe/embedding) -> F32[8,12]
transformer.drop: dropout(transformer.wpe/add, input/sequence_ids, step_state+0:I64[]) key=$0 rate=0.5 seed=7 -> F32[2,48]
transformer.h.0.ln_1: layer_norm(transformer.drop/dropout, transformer.h.0.ln_1.weight, transformer.h.0.ln_1.bias) bias=1 epsilon=0.5 -> F32[8,12]
transformer.h.0.attn.c_attn: matmul(transformer.h.0.ln_1/layer_norm.0, transformer.h.0.attn.c_attn.weight, transformer.h.0.attn.c_attn.bias) bias=1 -> F32[8,36]
transformer.h.0.attn: attention(transformer.h.0.attn.c_attn/matmul+0:F32[2,4,3,4]{144,36,4,1}, transformer.h.0.attn.c_attn/matmul+48:F32[2,4,3,4]{144,36,4,1}, transformer.h.0.attn.c_attn/matmul+96:F32[2,4,3,4]{144,36,4,1}, input/sequence_ids, step_state+0:I64[]) causal=1 dropout=0.25 key=$1 seed=7 -> F32[2,4,3,4]
transformer.h.0.attn.c_proj: matmul(transformer.h.0.attn/attention.0, transformer.h.0.attn.c_proj.weight, transformer.h.0.attn.c_proj.bias) bias=1 -> F32[8,12]
transformer.h.0.attn: dropout(transformer.h.0.attn.c_proj/matmul, input/sequence_ids, step_state+0:I64[]) key=$2 rate=0.125 seed=7 -> F32[2,48]
transformer.h.0: add(transformer.drop/dropout, transformer.h.0.attn/dropout) -> F32[8,12]
transformer.h.0.ln_2: layer_norm(transformer.h.0/add, transformer.h.0.ln_2.weight, transformer.h.0.ln_2.bias) bias=1 epsilon=0.5 -> F32[8,12]
transformer.h.0.mlp.c_fc: matmul(transformer.h.0.ln_2/layer_norm.0, transformer.h.0.mlp.c_fc.weight, transformer.h.0.mlp.c_fc.bias) bias=1 -> F32[8,48]
transformer.h.0.mlp: gelu(transformer.h.0.mlp.c_fc/matmul) tanh=1 -> F32[8,48]
transformer.h.0.mlp.c_proj: matmul(transformer.h.0.mlp/gelu, transformer.h.0.mlp.c_proj.weight, transformer.h.0.mlp.c_proj.bias) bias=1 -> F32[8,12]
transformer.h.0.mlp: dropout(transformer.h.0.mlp.c_proj/matmul, input/sequence_ids, step_state+0:I64[]) key=$3 rate=0.125 seed=7 -> F32[2,48]
transformer.h.0: add(transformer.h.0/add, transformer.h.0.mlp/dropout) -> F32[8,12]
transformer.ln_f: layer_norm(transformer.h.0/add#2, transformer.ln_f.weight, transformer.ln_f.bias) bias=1 epsilon=0.5 -> F32[8,12]
lm_head: cross_entropy_head(transformer.ln_f/layer_norm.0, transformer.wte.weight, input/targets) chunk_rows=8 -> F64[2]
)",
                key("transformer.drop"), key("transformer.h.0.attn/dropout"),
                key("transformer.h.0.attn/output_dropout"),
                key("transformer.h.0.mlp/output_dropout")));
}

TEST(EmitTest, LlamaInEvaluation) {
  Emission emission(kLlama);
  const auto result = emission.Emit(
      "eval", {.mode = ForwardMode::kEvaluate, .batch = 2, .length = 4});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(emission.Text("eval"),
            R"(: positions(step_state+16:I64[]) batch=2 length=4 -> I32[8]
model.embed_tokens: embedding(input/tokens, model.embed_tokens.weight) -> F32[8,12]
model.layers.0.input_layernorm: rms_norm(model.embed_tokens/embedding, model.layers.0.input_layernorm.weight) epsilon=0.5 -> F32[8,12]
model.layers.0.self_attn: matmul(model.layers.0.input_layernorm/rms_norm.0, model.layers.0.self_attn.q_proj.weight) transpose_b=1 -> F32[8,20]
model.layers.0.self_attn: rotary(model.layers.0.self_attn/matmul+0:F32[2,4,3,4]{80,20,4,1}, /positions) theta=10000 -> F32[2,4,3,4]
model.layers.0.self_attn: rotary(model.layers.0.self_attn/matmul+48:F32[2,4,1,4]{80,20,4,1}, /positions) theta=10000 -> F32[2,4,1,4]
model.layers.0.self_attn: attention(model.layers.0.self_attn/rotary, model.layers.0.self_attn/rotary#2, model.layers.0.self_attn/matmul+64:F32[2,4,1,4]{80,20,4,1}) causal=1 -> F32[2,4,3,4]
model.layers.0.self_attn.o_proj: matmul(model.layers.0.self_attn/attention.0, model.layers.0.self_attn.o_proj.weight) transpose_b=1 -> F32[8,12]
model.layers.0: add(model.embed_tokens/embedding, model.layers.0.self_attn.o_proj/matmul) -> F32[8,12]
model.layers.0.post_attention_layernorm: rms_norm(model.layers.0/add, model.layers.0.post_attention_layernorm.weight) epsilon=0.5 -> F32[8,12]
model.layers.0.mlp: matmul(model.layers.0.post_attention_layernorm/rms_norm.0, model.layers.0.mlp.gate_proj.weight) transpose_b=1 -> F32[8,40]
model.layers.0.mlp: swiglu(model.layers.0.mlp/matmul+0:F32[8,20]{40,1}, model.layers.0.mlp/matmul+80:F32[8,20]{40,1}) -> F32[8,20]
model.layers.0.mlp.down_proj: matmul(model.layers.0.mlp/swiglu, model.layers.0.mlp.down_proj.weight) transpose_b=1 -> F32[8,12]
model.layers.0: add(model.layers.0/add, model.layers.0.mlp.down_proj/matmul) -> F32[8,12]
model.norm: rms_norm(model.layers.0/add#2, model.norm.weight) epsilon=0.5 -> F32[8,12]
lm_head: cross_entropy_head(model.norm/rms_norm.0, lm_head.weight, input/targets) chunk_rows=8 -> F64[2]
)");
}

TEST(EmitTest, LlamaInGeneration) {
  Emission emission(kLlama);
  const auto result = emission.Emit("decode", {.mode = ForwardMode::kGenerate,
                                               .batch = 2,
                                               .length = 1,
                                               .cache_length = 64});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->stats, kNone);
  EXPECT_EQ(emission.builder.type(result->logits),
            TensorType(DType::kF32, {2, 131}));
  EXPECT_EQ(emission.Text("decode"),
            R"(: positions(step_state+16:I64[]) batch=2 length=1 -> I32[2]
model.embed_tokens: embedding(input/tokens, model.embed_tokens.weight) -> F32[2,12]
model.layers.0.input_layernorm: rms_norm(model.embed_tokens/embedding, model.layers.0.input_layernorm.weight) epsilon=0.5 -> F32[2,12]
model.layers.0.self_attn: matmul(model.layers.0.input_layernorm/rms_norm.0, model.layers.0.self_attn.q_proj.weight) transpose_b=1 -> F32[2,20]
model.layers.0.self_attn: rotary(model.layers.0.self_attn/matmul+0:F32[2,1,3,4]{20,20,4,1}, /positions) theta=10000 -> F32[2,1,3,4]
model.layers.0.self_attn: rotary(model.layers.0.self_attn/matmul+48:F32[2,1,1,4]{20,20,4,1}, /positions) theta=10000 -> F32[2,1,1,4]
model.layers.0.self_attn: kv_write(model.layers.0.self_attn/k_cache, model.layers.0.self_attn/rotary#2, step_state+16:I64[]) -> F32[2,64,1,4]
model.layers.0.self_attn: kv_write(model.layers.0.self_attn/v_cache, model.layers.0.self_attn/matmul+64:F32[2,1,1,4]{20,20,4,1}, step_state+16:I64[]) -> F32[2,64,1,4]
model.layers.0.self_attn: attention(model.layers.0.self_attn/rotary, model.layers.0.self_attn/k_cache, model.layers.0.self_attn/v_cache, step_state+16:I64[]) causal=1 has_offset=1 -> F32[2,1,3,4]
model.layers.0.self_attn.o_proj: matmul(model.layers.0.self_attn/attention.0, model.layers.0.self_attn.o_proj.weight) transpose_b=1 -> F32[2,12]
model.layers.0: add(model.embed_tokens/embedding, model.layers.0.self_attn.o_proj/matmul) -> F32[2,12]
model.layers.0.post_attention_layernorm: rms_norm(model.layers.0/add, model.layers.0.post_attention_layernorm.weight) epsilon=0.5 -> F32[2,12]
model.layers.0.mlp: matmul(model.layers.0.post_attention_layernorm/rms_norm.0, model.layers.0.mlp.gate_proj.weight) transpose_b=1 -> F32[2,40]
model.layers.0.mlp: swiglu(model.layers.0.mlp/matmul+0:F32[2,20]{40,1}, model.layers.0.mlp/matmul+80:F32[2,20]{40,1}) -> F32[2,20]
model.layers.0.mlp.down_proj: matmul(model.layers.0.mlp/swiglu, model.layers.0.mlp.down_proj.weight) transpose_b=1 -> F32[2,12]
model.layers.0: add(model.layers.0/add, model.layers.0.mlp.down_proj/matmul) -> F32[2,12]
model.norm: rms_norm(model.layers.0/add#2, model.norm.weight) epsilon=0.5 -> F32[2,12]
lm_head: embedding(input/last_rows, model.norm/rms_norm.0) -> F32[2,12]
lm_head: matmul(lm_head/embedding, lm_head.weight) transpose_b=1 -> F32[2,131]
)");
}

TEST(EmitTest, DropoutIsOffInEvaluation) {
  Emission emission(kGpt2);
  ASSERT_TRUE(
      emission
          .Emit("eval",
                {.mode = ForwardMode::kEvaluate, .batch = 2, .length = 4})
          .ok());
  const std::vector<std::string> ops = emission.Ops("eval");
  EXPECT_EQ(std::count(ops.begin(), ops.end(), "dropout"), 0);
  EXPECT_EQ(emission.graph.inputs.count("sequence_ids"), 0);
  for (const Node& node : emission.graph.nodes) {
    EXPECT_FALSE(node.attributes.Has("dropout"));
  }
}

TEST(EmitTest, DropoutKeysDifferAtEverySite) {
  Emission emission(
      "module { sequential { children { name: 'e' embedding { vocab_size: 7 "
      "width: 4 } } children { dropout { rate: 0.5 } } children { dropout { "
      "rate: 0.5 } } children { name: 'h' repeat { count: 2 body { residual { "
      "children { dropout { rate: 0.5 } } children { name: 'a' attention { "
      "width: 4 heads: 2 dropout: 0.5 output_dropout: 0.5 } } children { name: "
      "'f' feed_forward { width: 4 inner: 3 activation: 'relu' "
      "output_dropout: 0.5 } } } } } } children { name: 'o' head { vocab_size: "
      "7 width: 4 } } } }");
  ASSERT_TRUE(emission.Emit("micro", {.batch = 1, .length = 3}).ok());
  std::set<int64_t> keys;
  size_t sites = 0;
  for (const Node& node : emission.graph.nodes) {
    if (!node.attributes.Has("key")) continue;
    ++sites;
    keys.insert(node.attributes.Int("key"));
  }
  EXPECT_EQ(sites, 2 + 2 * 4);
  EXPECT_EQ(keys.size(), sites);
}

TEST(EmitTest, ParametersThatLieApartAreMultipliedOneByOne) {
  Emission emission(kLlama, /*stacked=*/false);
  ASSERT_TRUE(
      emission
          .Emit("eval",
                {.mode = ForwardMode::kEvaluate, .batch = 2, .length = 4})
          .ok());
  EXPECT_THAT(
      emission.Text("eval"),
      AllOf(
          HasSubstr("model.layers.0.self_attn.k_proj: matmul("
                    "model.layers.0.input_layernorm/rms_norm.0, "
                    "model.layers.0.self_attn.k_proj.weight) transpose_b=1 -> "
                    "F32[8,4]\n"),
          HasSubstr("model.layers.0.self_attn: rotary(model.layers.0.self_attn."
                    "k_proj/matmul, /positions) theta=10000 -> "
                    "F32[2,4,1,4]\n"),
          HasSubstr("model.layers.0.mlp: swiglu(model.layers.0.mlp.gate_proj/"
                    "matmul, model.layers.0.mlp.up_proj/matmul) -> "
                    "F32[8,20]\n")));
}

TEST(EmitTest, QueriesAndKeysAreNormalisedBeforeTheyAreRotated) {
  Emission emission(
      "llama { vocab_size: 9 hidden_size: 12 intermediate_size: 5 "
      "num_hidden_layers: 1 num_attention_heads: 3 num_key_value_heads: 1 "
      "qk_norm: true rms_norm_eps: 0.5 rope_scaling { factor: 8 "
      "low_freq_factor: 1 high_freq_factor: 4 "
      "original_max_position_embeddings: 16 } }");
  ASSERT_TRUE(emission.Emit("micro", {.batch = 1, .length = 2}).ok());
  EXPECT_THAT(
      emission.Text("micro"),
      AllOf(HasSubstr("self_attn.k_norm: rms_norm(model.layers.0.self_attn/"
                      "matmul+48:F32[1,2,1,4]{40,20,4,1}, "
                      "model.layers.0.self_attn.k_norm.weight) epsilon=0.5 -> "
                      "F32[1,2,1,4]\n"),
            HasSubstr("rotary(model.layers.0.self_attn.k_norm/rms_norm.0, "
                      "/positions) factor=8 high_freq_factor=4 "
                      "low_freq_factor=1 original_max_position=16 "
                      "rope_type=llama3 theta=10000 -> F32[1,2,1,4]\n")));
}

// Writes down what it is told.
class TracingParameters : public PlainParameters {
 public:
  using PlainParameters::PlainParameters;

  ValueId Get(const Parameter& parameter) override {
    absl::StrAppend(&trace, "get ", parameter.name, "\n");
    return PlainParameters::Get(parameter);
  }
  void Enter(const Module& module) override {
    absl::StrAppend(&trace, "enter ", module.name(), "\n");
  }
  void Exit(const Module& module, ValueId output) override {
    EXPECT_NE(output, kNone);
    absl::StrAppend(&trace, "exit ", module.name(), "\n");
  }

  std::string trace;
};

TEST(EmitTest, TheSourceIsToldWhereEmissionStands) {
  const auto model = ModelFromText(
      "module { sequential { children { name: 'e' embedding { vocab_size: 7 "
      "width: 4 } } children { name: 'h' repeat { count: 1 body { residual { "
      "children { name: 'l' linear { in: 4 out: 4 bias: true } } } } } } "
      "children { dropout { rate: 0.5 } } children { name: 'o' head { "
      "vocab_size: 7 width: 4 tied_to: 'e' } } } }");
  Graph graph;
  GraphBuilder builder(&graph);
  builder.SetPhase("micro");
  builder.SetScope("outer");
  TracingParameters source(builder, *model, DType::kF32, true);
  ASSERT_TRUE(model->Emit(builder, source, {.compute = DType::kF32}).ok());
  EXPECT_EQ(builder.scope(), "outer");
  EXPECT_EQ(source.trace,
            "enter \n"
            "enter e\n"
            "get e.weight\n"
            "exit e\n"
            "enter h\n"
            "enter h.0\n"
            "enter h.0.l\n"
            "get h.0.l.weight\n"
            "get h.0.l.bias\n"
            "exit h.0.l\n"
            "exit h.0\n"
            "exit h\n"
            "enter o\n"
            "get e.weight\n"
            "exit o\n"
            "exit \n");
}

TEST(EmitTest, PrefillAndDecodeShareCachesAndLogits) {
  Emission emission(kLlama);
  const auto prefill = emission.Emit("prefill", {.mode = ForwardMode::kGenerate,
                                                 .batch = 2,
                                                 .length = 8,
                                                 .cache_length = 64,
                                                 .input_prefix = "prefill/"});
  const auto decode = emission.Emit("decode", {.mode = ForwardMode::kGenerate,
                                               .batch = 2,
                                               .length = 1,
                                               .cache_length = 64,
                                               .input_prefix = "decode/"});
  ASSERT_TRUE(prefill.ok() && decode.ok());
  const Graph& graph = emission.graph;
  EXPECT_EQ(graph.value(prefill->logits).buffer,
            graph.value(decode->logits).buffer);
  EXPECT_EQ(graph.outputs.at("logits"), decode->logits);
  EXPECT_EQ(graph.buffer_of(decode->logits).lifetime, Lifetime::kRun);
  int caches = 0;
  for (const Buffer& buffer : graph.buffers) {
    if (buffer.kind != MemoryKind::kCache) continue;
    ++caches;
    EXPECT_EQ(buffer.lifetime, Lifetime::kRun);
    EXPECT_EQ(buffer.bytes, 2 * 64 * 4 * 4);
  }
  EXPECT_EQ(caches, 2);
  EXPECT_EQ(emission.builder.type(graph.inputs.at("prefill/tokens")),
            TensorType(DType::kI32, {16}));
  EXPECT_EQ(emission.builder.type(graph.inputs.at("decode/tokens")),
            TensorType(DType::kI32, {2}));
}

TEST(EmitTest, ChunksOfLogitsAreBounded) {
  const auto chunk_rows = [](ForwardOptions options) {
    Emission emission("gpt2 { n_layer: 1 }");
    EXPECT_TRUE(emission.Emit("eval", options).ok());
    return emission.graph.nodes.back().attributes.Int("chunk_rows");
  };
  // 256 MiB of F32 rows of 50257 logits, in multiples of 64; chunks alike.
  EXPECT_EQ(chunk_rows({.batch = 5, .length = 256}), 1280);
  EXPECT_EQ(chunk_rows({.batch = 4, .length = 512}), 1024);
  EXPECT_EQ(chunk_rows({.batch = 3, .length = 500}), 768);
  EXPECT_EQ(chunk_rows({.batch = 1, .length = 5}), 5);
  EXPECT_EQ(chunk_rows({.batch = 4, .length = 512, .loss_chunk_rows = 100}),
            100);
}

TEST(EmitTest, RefusesWhatDoesNotFitTheModel) {
  struct Case {
    ForwardOptions options;
    std::string message;
  };
  const Case cases[] = {
      {{.batch = 1, .length = 33},
       "sequence length is 33: the model has 32 positions "
       "(model.gpt2.n_positions)"},
      {{.batch = 0, .length = 8}, "batch is 0"},
      {{.batch = 1, .length = 0}, "sequence length is 0"},
      {{.batch = 100000000, .length = 32}, "batch is 100000000: times a"},
      {{.mode = ForwardMode::kGenerate, .length = 8, .cache_length = 4},
       "cache length is 4: must hold the 8 tokens"},
      {{.mode = ForwardMode::kGenerate, .length = 8, .cache_length = 33},
       "cache length is 33: the model has 32 positions"},
  };
  for (const Case& c : cases) {
    Emission emission(kGpt2);
    const auto result = emission.Emit("phase", c.options);
    ASSERT_FALSE(result.ok()) << c.message;
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(result.status().message()), HasSubstr(c.message));
    EXPECT_TRUE(emission.graph.nodes.empty());
  }
}

}  // namespace
}  // namespace shardgraph
