#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/model/module.h"
#include "graph/model/testing/model_text.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

constexpr char kLlama2_7b[] =
    "llama { vocab_size: 32000 hidden_size: 4096 intermediate_size: 11008 "
    "num_hidden_layers: 32 num_attention_heads: 32 "
    "max_position_embeddings: 4096 rms_norm_eps: 1e-5 }";

// Every module in registration order: indented by depth, class, marks, and
// the parameters it owns or shares.
std::string PrintTree(const Module& module, int depth = 0) {
  std::string text = absl::StrCat(
      std::string(2 * depth, ' '), module.name(), " ", module.class_name(),
      module.transparent() ? " ()" : "", module.block() ? " block" : "",
      module.list() ? " list" : "", module.attention() ? " attention" : "");
  for (const Parameter* parameter : module.parameters()) {
    absl::StrAppend(&text, " ", parameter->name, "[",
                    absl::StrJoin(parameter->shape, ","), "]");
  }
  absl::StrAppend(&text, "\n");
  for (const auto& child : module.children()) {
    absl::StrAppend(&text, PrintTree(*child, depth + 1));
  }
  return text;
}

// Elements of a subtree, each parameter counted once.
int64_t SubtreeNumel(const Module& root) {
  std::set<const Parameter*> seen;
  int64_t total = 0;
  const std::function<void(const Module&)> walk = [&](const Module& module) {
    for (const Parameter* parameter : module.parameters()) {
      if (seen.insert(parameter).second) total += parameter->numel();
    }
    for (const auto& child : module.children()) walk(*child);
  };
  walk(root);
  return total;
}

std::map<std::string, const Module*> ModulesByName(const Module& root) {
  std::map<std::string, const Module*> modules;
  const std::function<void(const Module&)> walk = [&](const Module& module) {
    if (!module.transparent()) modules[module.name()] = &module;
    for (const auto& child : module.children()) walk(*child);
  };
  walk(root);
  return modules;
}

std::map<std::string, const Parameter*> ParametersByName(const Model& model) {
  std::map<std::string, const Parameter*> parameters;
  for (const Parameter* parameter : model.parameters()) {
    parameters[parameter->name] = parameter;
  }
  EXPECT_EQ(parameters.size(), model.parameters().size());
  return parameters;
}

TEST(ModelTest, Gpt2HasHuggingFacesTree) {
  const auto model = ModelFromText(
      "gpt2 { vocab_size: 131 n_positions: 32 n_embd: 12 n_head: 3 n_layer: 1 "
      "}");
  EXPECT_EQ(PrintTree(model->root()),
            R"( GPT2LMHeadModel
  transformer GPT2Model
    transformer.wte Embedding transformer.wte.weight[131,12]
    transformer.wpe Embedding transformer.wpe.weight[32,12]
    transformer.drop Dropout
    transformer.h ModuleList list
      transformer.h.0 GPT2Block block
        transformer.h.0 Residual ()
          transformer.h.0.ln_1 LayerNorm transformer.h.0.ln_1.weight[12] transformer.h.0.ln_1.bias[12]
          transformer.h.0.attn GPT2Attention
            transformer.h.0.attn.c_attn Conv1D transformer.h.0.attn.c_attn.weight[12,36] transformer.h.0.attn.c_attn.bias[36]
            transformer.h.0.attn.c_proj Conv1D transformer.h.0.attn.c_proj.weight[12,12] transformer.h.0.attn.c_proj.bias[12]
        transformer.h.0 Residual ()
          transformer.h.0.ln_2 LayerNorm transformer.h.0.ln_2.weight[12] transformer.h.0.ln_2.bias[12]
          transformer.h.0.mlp GPT2MLP
            transformer.h.0.mlp.c_fc Conv1D transformer.h.0.mlp.c_fc.weight[12,48] transformer.h.0.mlp.c_fc.bias[48]
            transformer.h.0.mlp.c_proj Conv1D transformer.h.0.mlp.c_proj.weight[48,12] transformer.h.0.mlp.c_proj.bias[12]
    transformer.ln_f LayerNorm transformer.ln_f.weight[12] transformer.ln_f.bias[12]
  lm_head Linear transformer.wte.weight[131,12]
)");
  EXPECT_EQ(model->aliases(),
            (std::vector<std::pair<std::string, std::string>>{
                {"lm_head.weight", "transformer.wte.weight"}}));
  EXPECT_TRUE(model->stacks().empty());
  EXPECT_EQ(model->vocab_size(), 131);
  EXPECT_EQ(model->max_positions(), 32);
}

TEST(ModelTest, LlamaHasHuggingFacesTree) {
  const auto model = ModelFromText(
      "llama { vocab_size: 131 hidden_size: 12 intermediate_size: 20 "
      "num_hidden_layers: 1 num_attention_heads: 3 num_key_value_heads: 1 "
      "max_position_embeddings: 64 qkv_bias: true qk_norm: true "
      "model_type: 'qwen3' }");
  EXPECT_EQ(PrintTree(model->root()),
            R"( Qwen3ForCausalLM
  model Qwen3Model
    model.embed_tokens Embedding model.embed_tokens.weight[131,12]
    model.layers ModuleList list
      model.layers.0 Qwen3DecoderLayer block
        model.layers.0 Residual ()
          model.layers.0.input_layernorm Qwen3RMSNorm model.layers.0.input_layernorm.weight[12]
          model.layers.0.self_attn Qwen3Attention
            model.layers.0.self_attn.q_proj Linear model.layers.0.self_attn.q_proj.weight[12,12] model.layers.0.self_attn.q_proj.bias[12]
            model.layers.0.self_attn.k_proj Linear model.layers.0.self_attn.k_proj.weight[4,12] model.layers.0.self_attn.k_proj.bias[4]
            model.layers.0.self_attn.v_proj Linear model.layers.0.self_attn.v_proj.weight[4,12] model.layers.0.self_attn.v_proj.bias[4]
            model.layers.0.self_attn.o_proj Linear model.layers.0.self_attn.o_proj.weight[12,12]
            model.layers.0.self_attn.q_norm RmsNorm model.layers.0.self_attn.q_norm.weight[4]
            model.layers.0.self_attn.k_norm RmsNorm model.layers.0.self_attn.k_norm.weight[4]
        model.layers.0 Residual ()
          model.layers.0.post_attention_layernorm Qwen3RMSNorm model.layers.0.post_attention_layernorm.weight[12]
          model.layers.0.mlp Qwen3MLP
            model.layers.0.mlp.gate_proj Linear model.layers.0.mlp.gate_proj.weight[20,12]
            model.layers.0.mlp.up_proj Linear model.layers.0.mlp.up_proj.weight[20,12]
            model.layers.0.mlp.down_proj Linear model.layers.0.mlp.down_proj.weight[12,20]
    model.norm Qwen3RMSNorm model.norm.weight[12]
  lm_head Linear lm_head.weight[131,12]
)");
  EXPECT_TRUE(model->aliases().empty());
  EXPECT_EQ(model->max_positions(), 64);

  std::vector<std::string> stacks;
  for (const auto& stack : model->stacks()) {
    stacks.push_back(absl::StrJoin(
        stack, " ", [](std::string* out, const Parameter* parameter) {
          absl::StrAppend(out, parameter->name.substr(15));
        }));
  }
  EXPECT_EQ(stacks, (std::vector<std::string>{
                        "self_attn.q_proj.weight self_attn.k_proj.weight "
                        "self_attn.v_proj.weight",
                        "self_attn.q_proj.bias self_attn.k_proj.bias "
                        "self_attn.v_proj.bias",
                        "mlp.gate_proj.weight mlp.up_proj.weight"}));
}

struct SizeCase {
  std::string spec;
  int64_t numel;
};

TEST(ModelTest, PublishedModelsHaveTheirPublishedSizes) {
  const SizeCase cases[] = {
      {"gpt2 {}", 124439808},
      {"gpt2 { n_embd: 1600 n_layer: 48 n_head: 25 }", 1557611200},
      {kLlama2_7b, 6738415616},
      {"llama { vocab_size: 128256 hidden_size: 4096 intermediate_size: 14336 "
       "num_hidden_layers: 32 num_attention_heads: 32 num_key_value_heads: 8 }",
       8030261248},
      {"llama { vocab_size: 128256 hidden_size: 8192 intermediate_size: 28672 "
       "num_hidden_layers: 80 num_attention_heads: 64 num_key_value_heads: 8 }",
       70553706496},
      {"llama { vocab_size: 151936 hidden_size: 896 intermediate_size: 4864 "
       "num_hidden_layers: 24 num_attention_heads: 14 num_key_value_heads: 2 "
       "qkv_bias: true tie_word_embeddings: true model_type: 'qwen2' }",
       494032768},
  };
  for (const SizeCase& c : cases) {
    EXPECT_EQ(ModelFromText(c.spec)->numel(), c.numel) << c.spec;
  }
}

// What the size-based wrap policy sees of Llama-2-7B at 1e8.
TEST(ModelTest, Llama2SubtreesHaveTheSizesOfThePolicysUnits) {
  const auto model = ModelFromText(kLlama2_7b);
  const auto modules = ModulesByName(model->root());
  const int64_t embed = SubtreeNumel(*modules.at("model.embed_tokens"));
  const int64_t mlp = SubtreeNumel(*modules.at("model.layers.7.mlp"));
  EXPECT_EQ(embed, 131072000);
  EXPECT_EQ(mlp, 135266304);
  EXPECT_EQ(SubtreeNumel(*modules.at("lm_head")), 131072000);
  EXPECT_EQ(SubtreeNumel(*modules.at("model")) - embed - 32 * mlp, 2147749888);
  EXPECT_LT(SubtreeNumel(*modules.at("model.layers.7.self_attn")), 100000000);
  EXPECT_TRUE(modules.at("model.layers")->list());
  EXPECT_FALSE(modules.at("model.layers.7.self_attn")->attention());
}

TEST(ModelTest, ATiedHeadAddsNothingToTheWhole) {
  const auto model = ModelFromText("gpt2 {}");
  EXPECT_EQ(SubtreeNumel(model->root()), 124439808);
  EXPECT_EQ(SubtreeNumel(*ModulesByName(model->root()).at("transformer")),
            124439808);
  const auto untied = ModelFromText("gpt2 { tie_word_embeddings: false }");
  EXPECT_EQ(untied->numel(), 124439808 + 50257 * 768);
  EXPECT_TRUE(untied->aliases().empty());
}

TEST(ModelTest, ParametersStartAsHuggingFacesDo) {
  const auto model =
      ModelFromText("gpt2 { n_layer: 8 initializer_range: 0.1 }");
  const auto gpt2 = ParametersByName(*model);
  using Init = Parameter::Init;
  EXPECT_EQ(gpt2.at("transformer.ln_f.weight")->init, Init::kOnes);
  EXPECT_EQ(gpt2.at("transformer.ln_f.bias")->init, Init::kZeros);
  EXPECT_EQ(gpt2.at("transformer.h.0.attn.c_attn.bias")->init, Init::kZeros);
  EXPECT_EQ(gpt2.at("transformer.wpe.weight")->init, Init::kNormal);
  EXPECT_DOUBLE_EQ(gpt2.at("transformer.wpe.weight")->std, 0.1);
  EXPECT_DOUBLE_EQ(gpt2.at("transformer.h.7.attn.c_attn.weight")->std, 0.1);
  // 0.1 / sqrt(2 x 8)
  EXPECT_DOUBLE_EQ(gpt2.at("transformer.h.7.attn.c_proj.weight")->std, 0.025);
  EXPECT_DOUBLE_EQ(gpt2.at("transformer.h.7.mlp.c_proj.weight")->std, 0.025);

  const auto llama_model = ModelFromText(
      "llama { vocab_size: 9 hidden_size: 4 intermediate_size: 5 "
      "num_hidden_layers: 1 num_attention_heads: 2 }");
  const auto llama = ParametersByName(*llama_model);
  EXPECT_EQ(llama.at("model.norm.weight")->init, Init::kOnes);
  EXPECT_DOUBLE_EQ(llama.at("lm_head.weight")->std, 0.02);
  EXPECT_DOUBLE_EQ(llama.at("model.layers.0.self_attn.o_proj.weight")->std,
                   0.02);
}

TEST(ModelTest, AnExpandedShorthandIsTheSameModelAndExpandsToItself) {
  for (const char* text :
       {"gpt2 { n_layer: 2 }",
        "llama { vocab_size: 9 hidden_size: 12 intermediate_size: 5 "
        "num_hidden_layers: 2 num_attention_heads: 2 qk_norm: true "
        "rope_scaling { factor: 8 low_freq_factor: 1 high_freq_factor: 4 "
        "original_max_position_embeddings: 8192 } }"}) {
    const ModelSpec shorthand = ModelSpecFromText(text);
    ModelSpec expanded;
    *expanded.mutable_module() = ExpandModel(shorthand).value();
    EXPECT_EQ(PrintTree(MakeModel(expanded).value()->root()),
              PrintTree(MakeModel(shorthand).value()->root()));
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(
        ExpandModel(expanded).value(), expanded.module()));
  }
}

TEST(ModelTest, PeopleComposeModelsOfTheirOwn) {
  const auto model = ModelFromText(R"pb(
    module {
      sequential {
        children {
          name : "tokens"
          embedding { vocab_size : 7 width : 6 }
        }
        children { dropout { rate : 0.5 } }
        children {
          name : "layers"
          repeat {
            count : 2
            body {
              block : true
              class_name : "Mine"
              residual {
                children {
                  name : "norm"
                  layer_norm { width : 6 bias : false }
                }
                children {
                  name : "attend"
                  class_name : "MultiheadAttention"
                  attention { width : 6 heads : 2 }
                }
                children {
                  name : "act"
                  activation { function : "relu" }
                }
                children {
                  name : "mix"
                  linear { in : 6 out : 6 bias : true }
                }
              }
            }
          }
        }
        children {
          name : "wide"
          linear { in : 6 out : 4 input_major : true }
        }
        children {
          name : "out"
          head { vocab_size : 7 width : 4 }
        }
      }
    })pb");
  EXPECT_EQ(PrintTree(model->root()),
            R"( Sequential
  tokens Embedding tokens.weight[7,6]
   Dropout ()
  layers ModuleList list
    layers.0 Mine block
      layers.0.norm LayerNorm layers.0.norm.weight[6]
      layers.0.attend MultiheadAttention attention
        layers.0.attend.q_proj Linear layers.0.attend.q_proj.weight[6,6]
        layers.0.attend.k_proj Linear layers.0.attend.k_proj.weight[6,6]
        layers.0.attend.v_proj Linear layers.0.attend.v_proj.weight[6,6]
        layers.0.attend.o_proj Linear layers.0.attend.o_proj.weight[6,6]
      layers.0.act Activation
      layers.0.mix Linear layers.0.mix.weight[6,6] layers.0.mix.bias[6]
    layers.1 Mine block
      layers.1.norm LayerNorm layers.1.norm.weight[6]
      layers.1.attend MultiheadAttention attention
        layers.1.attend.q_proj Linear layers.1.attend.q_proj.weight[6,6]
        layers.1.attend.k_proj Linear layers.1.attend.k_proj.weight[6,6]
        layers.1.attend.v_proj Linear layers.1.attend.v_proj.weight[6,6]
        layers.1.attend.o_proj Linear layers.1.attend.o_proj.weight[6,6]
      layers.1.act Activation
      layers.1.mix Linear layers.1.mix.weight[6,6] layers.1.mix.bias[6]
  wide Linear wide.weight[6,4]
  out Head out.weight[7,4]
)");
  EXPECT_EQ(model->max_positions(), 0);
}

}  // namespace
}  // namespace shardgraph
