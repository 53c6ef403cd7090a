// Wrong specs: each error names the field, its value and what to do.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "graph/model/module.h"
#include "graph/model/testing/model_text.h"
#include "gtest/gtest.h"

namespace shardgraph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct BadCase {
  std::string spec;
  std::string start;   // of the message: the field path and the value
  std::string remedy;  // a part of it
};

void ExpectRefused(const std::vector<BadCase>& cases) {
  for (const BadCase& c : cases) {
    const auto model = MakeModel(ModelSpecFromText(c.spec));
    ASSERT_FALSE(model.ok()) << c.spec;
    EXPECT_EQ(model.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(model.status().message()),
                AllOf(StartsWith(c.start), HasSubstr(c.remedy)))
        << c.spec;
  }
}

TEST(CheckTest, Gpt2Fields) {
  ExpectRefused({
      {"gpt2 { n_head: 5 }", "model.gpt2.n_head is 5: must divide n_embd",
       "768; near by are 2, 3, 4, 6, 8, 12"},
      {"gpt2 { vocab_size: -1 }", "model.gpt2.vocab_size is -1", "between 1"},
      {"gpt2 { n_embd: 3000000000 }", "model.gpt2.n_embd is 3000000000",
       "between 1 and 2147483647"},
      {"gpt2 { n_layer: 20000 }", "model.gpt2.n_layer is 20000",
       "between 1 and 10000"},
      {"gpt2 { n_inner: -4 }", "model.gpt2.n_inner is -4", "between 1"},
      {"gpt2 { n_embd: 2147483647 n_head: 1 }", "model.gpt2.n_inner is 8589",
       "between 1"},
      {"gpt2 { resid_pdrop: 1 }", "model.gpt2.resid_pdrop is 1", "below 1"},
      {"gpt2 { attn_pdrop: -0.1 }", "model.gpt2.attn_pdrop is -0.1",
       "0 switches it off"},
      {"gpt2 { embd_pdrop: nan }", "model.gpt2.embd_pdrop is nan", "below 1"},
      {"gpt2 { activation_function: 'gelu_nwe' }",
       "model.gpt2.activation_function is \"gelu_nwe\"", "\"gelu_new\""},
      {"gpt2 { layer_norm_epsilon: 0 }", "model.gpt2.layer_norm_epsilon is 0",
       "above 0"},
      {"gpt2 { initializer_range: inf }", "model.gpt2.initializer_range is inf",
       "finite"},
      {"", "model is empty", "model.gpt2"},
  });
}

TEST(CheckTest, LlamaFields) {
  std::vector<BadCase> cases = {
      {"num_key_value_heads: 4",
       "model.llama.num_key_value_heads is 4: must divide num_attention_heads",
       "which is 6; near by are 1, 2, 3, 6"},
      {"num_attention_heads: 5",
       "model.llama.num_attention_heads is 5: must divide hidden_size",
       "which is 12"},
      {"num_attention_heads: 4", "model.llama.head_dim is 3: must be even",
       "rotary"},
      {"head_dim: 7", "model.llama.head_dim is 7: must be even", "rotary"},
      {"max_position_embeddings: -1",
       "model.llama.max_position_embeddings is -1", "between 1"},
      {"rms_norm_eps: -1", "model.llama.rms_norm_eps is -1", "above 0"},
      {"rope_theta: 0", "model.llama.rope_theta is 0", "above 0"},
      {"attention_dropout: 1.5", "model.llama.attention_dropout is 1.5",
       "below 1"},
      {"model_type: 'gemma'", "model.llama.model_type is \"gemma\"",
       "\"mistral\""},
      {"rope_scaling { }", "model.llama.rope_scaling.factor is 0", "above 0"},
      {"rope_scaling { factor: 8 low_freq_factor: 4 high_freq_factor: 4 "
       "original_max_position_embeddings: 64 }",
       "model.llama.rope_scaling.high_freq_factor is 4",
       "above low_freq_factor"},
  };
  for (BadCase& c : cases) {
    // A good small Llama with one field replaced.
    ModelSpec spec = ModelSpecFromText(
        "llama { vocab_size: 9 hidden_size: 12 intermediate_size: 5 "
        "num_hidden_layers: 2 num_attention_heads: 6 }");
    spec.MergeFrom(ModelSpecFromText("llama { " + c.spec + " }"));
    c.spec = spec.ShortDebugString();
  }
  cases.push_back({"llama { hidden_size: 12 }",
                   "model.llama.vocab_size is 0: set it", "between 1"});
  ExpectRefused(cases);
}

// A composed model of `middle` between an embedding of width 6 and a head.
std::string Composed(const std::string& middle) {
  return "module { sequential { children { name: 'wte' embedding { "
         "vocab_size: 7 width: 6 } } " +
         middle +
         " children { name: 'out' head { vocab_size: 7 width: 6 } } } }";
}

TEST(CheckTest, ModulesOfAComposedModel) {
  const std::string at = "model.module.sequential.children[1]";
  ExpectRefused({
      {Composed("children { linear { in: 8 out: 6 } }"),
       at + ".linear.in is 8: the module before it gives activations of width "
            "6",
       "make both equal"},
      {Composed("children { name: 'l' linear { in: 6 out: 8 } }"),
       "model.module.sequential.children[2].head.width is 6: the module before",
       "width 8"},
      {Composed("children { linear { in: 6 } }"), at + ".linear.out is 0",
       "set it"},
      {Composed("children { name: 'a.b' linear { in: 6 out: 6 } }"),
       at + ".name is \"a.b\"", "letters, digits and underscores"},
      {Composed("children { name: 'wte' linear { in: 6 out: 6 } }"),
       at + ".name is \"wte\": there is another module", "of its own"},
      {Composed("children { linear { in: 6 out: 6 } } "
                "children { linear { in: 6 out: 6 } }"),
       "model.module.sequential.children[2]: there is another parameter "
       "\"weight\"",
       "give the module a name"},
      {Composed("children { name: 'x' }"), at + " has no kind", "sequential"},
      {Composed("children { sequential { } }"),
       at + ".sequential has no children", "add some"},
      {Composed("children { embedding { vocab_size: 7 width: 6 } }"),
       at + ".embedding: takes tokens", "must be the first"},
      {Composed("children { name: 'o' head { vocab_size: 7 width: 6 } }"),
       "model.module.sequential.children[2].head.width: comes after the head",
       "last module"},
      {Composed("children { dropout { rate: 1 } }"), at + ".dropout.rate is 1",
       "below 1"},
      {Composed("children { activation { function: 'tanh' } }"),
       at + ".activation.function is \"tanh\"", "\"silu\""},
      {Composed("children { layer_norm { width: 5 } }"),
       at + ".layer_norm.width is 5", "width 6"},
      {Composed("children { rms_norm { width: 6 epsilon: 0 } }"),
       at + ".rms_norm.epsilon is 0", "above 0"},
      {Composed("children { position_embedding { width: 6 } }"),
       at + ".position_embedding.positions is 0", "set it"},
      {Composed("children { block: true residual { children { dropout { } } } "
                "}"),
       at + ".block is true", "give it a name"},
      {Composed(
           "children { residual { children { linear { in: 6 out: 3 } } } }"),
       at + ".residual: its result is added to its input",
       "children give activations of width 3"},
      {Composed("children { name: 'h' repeat { count: 2 body { linear { in: 6 "
                "out: 3 } } } }"),
       at + ".repeat.body: copies follow one another",
       "gives activations of "
       "width 3"},
      {Composed("children { name: 'h' repeat { count: 0 body { linear { in: 6 "
                "out: 6 } } } }"),
       at + ".repeat.count is 0", "between 1"},
      {Composed("children { name: 'h' repeat { count: 1 body { name: 'x' "
                "linear { in: 6 out: 6 } } } }"),
       at + ".repeat.body.name is \"x\"", "named by their numbers"},
  });
}

TEST(CheckTest, AttentionAndFeedForward) {
  const auto attention = [](const std::string& fields) {
    return Composed("children { name: 'a' attention { width: 6 " + fields +
                    " } }");
  };
  const auto feed_forward = [](const std::string& fields) {
    return Composed("children { name: 'f' feed_forward { width: 6 inner: 8 " +
                    fields + " } }");
  };
  const std::string at = "model.module.sequential.children[1]";
  ExpectRefused({
      {attention("heads: 4"), at + ".attention.heads is 4: must divide width",
       "near by are 1, 2, 3, 6"},
      {attention("heads: 6 key_value_heads: 4"),
       at + ".attention.key_value_heads is 4: must divide heads", "6"},
      {attention("heads: 2 rotary { }"), at + ".attention.head_dim is 3",
       "even"},
      {attention("heads: 2 head_dim: 2147483647"),
       at + ".attention.head_dim is 2147483647", "at most"},
      {attention("heads: 3 rotary { theta: -1 }"),
       at + ".attention.rotary.theta is -1", "above 0"},
      {attention("heads: 3 dropout: 2"), at + ".attention.dropout is 2",
       "below 1"},
      {attention("heads: 3 output_init { std: -1 }"),
       at + ".attention.output_init.std is -1", "0.02"},
      {feed_forward(""), at + ".feed_forward.activation is \"\"",
       "\"gelu_new\""},
      {feed_forward("gated: true activation: 'relu'"),
       at + ".feed_forward.activation is \"relu\"", "\"silu\""},
      {feed_forward("gated: true input_major: true"),
       at + ".feed_forward.input_major is true", "remove it"},
  });
}

TEST(CheckTest, RootsAndHeads) {
  const std::string embedding =
      "children { name: 'wte' embedding { vocab_size: 7 width: 6 } } ";
  const auto with_head = [&](const std::string& head) {
    return "module { sequential { " + embedding +
           "children { name: 'out' head { " + head + " } } } }";
  };
  const std::string at = "model.module.sequential.children[1].head";
  ExpectRefused({
      {"module { sequential { " + embedding + "} }", "model.module has no head",
       "as the last module"},
      {"module { name: 'm' sequential { " + embedding + "} }",
       "model.module.name is \"m\"", "the root has no name"},
      {"module { head { vocab_size: 7 width: 6 } }",
       "model.module.head.width: takes activations", "embedding"},
      {"module { }", "model.module has no kind", "sequential"},
      {with_head("vocab_size: 8 width: 6"), at + ".vocab_size is 8",
       "embedding's is 7"},
      {with_head("vocab_size: 7 width: 6 tied_to: 'wtf'"),
       at + ".tied_to is \"wtf\"", "[wte]"},
      {"module { sequential { " + embedding +
           "children { name: 'l' linear { in: 6 out: 3 } } children { name: "
           "'out' head { vocab_size: 7 width: 3 tied_to: 'wte' } } } }",
       "model.module.sequential.children[2].head.tied_to is \"wte\"",
       "[7, 6], the head needs [7, 3]"},
  });
}

}  // namespace
}  // namespace shardgraph
