#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/model/expand.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// `spec` with its defaults.
struct Gpt2 {
  explicit Gpt2(const Gpt2Spec& spec)
      : vocab_size(Or(spec.vocab_size(), 50257)),
        n_positions(Or(spec.n_positions(), 1024)),
        n_embd(Or(spec.n_embd(), 768)),
        n_layer(Or(spec.n_layer(), 12)),
        n_head(Or(spec.n_head(), 12)),
        n_inner(
            Or(spec.n_inner(), 4 * std::clamp<int64_t>(n_embd, 0, kMaxSize))),
        activation(spec.activation_function().empty()
                       ? "gelu_new"
                       : spec.activation_function()),
        epsilon(spec.has_layer_norm_epsilon() ? spec.layer_norm_epsilon()
                                              : 1e-5),
        resid_pdrop(spec.has_resid_pdrop() ? spec.resid_pdrop() : 0.1),
        embd_pdrop(spec.has_embd_pdrop() ? spec.embd_pdrop() : 0.1),
        attn_pdrop(spec.has_attn_pdrop() ? spec.attn_pdrop() : 0.1),
        tied(!spec.has_tie_word_embeddings() || spec.tie_word_embeddings()),
        std(spec.has_initializer_range() ? spec.initializer_range() : 0.02) {}

  static int64_t Or(int64_t value, int64_t otherwise) {
    return value == 0 ? otherwise : value;
  }

  absl::Status Check() const {
    SG_RETURN_IF_ERROR(CheckSize("model.gpt2.vocab_size", vocab_size));
    SG_RETURN_IF_ERROR(CheckSize("model.gpt2.n_positions", n_positions));
    SG_RETURN_IF_ERROR(CheckSize("model.gpt2.n_embd", n_embd));
    SG_RETURN_IF_ERROR(CheckCopies("model.gpt2.n_layer", n_layer));
    SG_RETURN_IF_ERROR(CheckSize("model.gpt2.n_head", n_head));
    SG_RETURN_IF_ERROR(
        CheckDivides("model.gpt2.n_head", n_head, "n_embd", n_embd));
    SG_RETURN_IF_ERROR(CheckSize("model.gpt2.n_inner", n_inner));
    SG_RETURN_IF_ERROR(
        CheckActivation("model.gpt2.activation_function", activation));
    SG_RETURN_IF_ERROR(CheckPositive("model.gpt2.layer_norm_epsilon", epsilon));
    SG_RETURN_IF_ERROR(CheckRate("model.gpt2.resid_pdrop", resid_pdrop));
    SG_RETURN_IF_ERROR(CheckRate("model.gpt2.embd_pdrop", embd_pdrop));
    SG_RETURN_IF_ERROR(CheckRate("model.gpt2.attn_pdrop", attn_pdrop));
    return CheckPositive("model.gpt2.initializer_range", std);
  }

  int64_t vocab_size, n_positions, n_embd, n_layer, n_head, n_inner;
  std::string activation;
  double epsilon, resid_pdrop, embd_pdrop, attn_pdrop;
  bool tied;
  double std;
};

ModuleSpec* AddChild(SequentialSpec* parent, const char* name,
                     const char* class_name) {
  ModuleSpec* child = parent->add_children();
  child->set_name(name);
  child->set_class_name(class_name);
  return child;
}

void AddNorm(const Gpt2& gpt2, const char* name, ModuleSpec* module) {
  module->set_name(name);
  module->set_class_name("LayerNorm");
  module->mutable_layer_norm()->set_width(gpt2.n_embd);
  module->mutable_layer_norm()->set_epsilon(gpt2.epsilon);
}

void FillBlock(const Gpt2& gpt2, ModuleSpec* block) {
  block->set_class_name("GPT2Block");
  block->set_block(true);
  const double output_std = gpt2.std / std::sqrt(2.0 * gpt2.n_layer);

  ResidualSpec* first =
      block->mutable_sequential()->add_children()->mutable_residual();
  AddNorm(gpt2, "ln_1", first->add_children());
  ModuleSpec* attn = first->add_children();
  attn->set_name("attn");
  attn->set_class_name("GPT2Attention");
  AttentionSpec* attention = attn->mutable_attention();
  attention->set_width(gpt2.n_embd);
  attention->set_heads(gpt2.n_head);
  attention->set_fused(true);
  attention->set_qkv_bias(true);
  attention->set_output_bias(true);
  attention->set_dropout(gpt2.attn_pdrop);
  attention->set_output_dropout(gpt2.resid_pdrop);
  attention->mutable_init()->set_std(gpt2.std);
  attention->mutable_output_init()->set_std(output_std);

  ResidualSpec* second =
      block->mutable_sequential()->add_children()->mutable_residual();
  AddNorm(gpt2, "ln_2", second->add_children());
  ModuleSpec* mlp = second->add_children();
  mlp->set_name("mlp");
  mlp->set_class_name("GPT2MLP");
  FeedForwardSpec* feed_forward = mlp->mutable_feed_forward();
  feed_forward->set_width(gpt2.n_embd);
  feed_forward->set_inner(gpt2.n_inner);
  feed_forward->set_activation(gpt2.activation);
  feed_forward->set_bias(true);
  feed_forward->set_input_major(true);
  feed_forward->set_output_dropout(gpt2.resid_pdrop);
  feed_forward->mutable_init()->set_std(gpt2.std);
  feed_forward->mutable_output_init()->set_std(output_std);
}

}  // namespace

absl::StatusOr<ModuleSpec> ExpandGpt2(const Gpt2Spec& spec) {
  const Gpt2 gpt2(spec);
  SG_RETURN_IF_ERROR(gpt2.Check());

  ModuleSpec root;
  root.set_class_name("GPT2LMHeadModel");
  SequentialSpec* top = root.mutable_sequential();
  SequentialSpec* transformer =
      AddChild(top, "transformer", "GPT2Model")->mutable_sequential();

  EmbeddingSpec* wte =
      AddChild(transformer, "wte", "Embedding")->mutable_embedding();
  wte->set_vocab_size(gpt2.vocab_size);
  wte->set_width(gpt2.n_embd);
  wte->mutable_init()->set_std(gpt2.std);
  PositionEmbeddingSpec* wpe =
      AddChild(transformer, "wpe", "Embedding")->mutable_position_embedding();
  wpe->set_positions(gpt2.n_positions);
  wpe->set_width(gpt2.n_embd);
  wpe->mutable_init()->set_std(gpt2.std);
  AddChild(transformer, "drop", "Dropout")
      ->mutable_dropout()
      ->set_rate(gpt2.embd_pdrop);
  RepeatSpec* layers =
      AddChild(transformer, "h", "ModuleList")->mutable_repeat();
  layers->set_count(gpt2.n_layer);
  FillBlock(gpt2, layers->mutable_body());
  AddNorm(gpt2, "ln_f", transformer->add_children());

  HeadSpec* head = AddChild(top, "lm_head", "Linear")->mutable_head();
  head->set_vocab_size(gpt2.vocab_size);
  head->set_width(gpt2.n_embd);
  if (gpt2.tied) {
    head->set_tied_to("transformer.wte");
  } else {
    head->mutable_init()->set_std(gpt2.std);
  }
  return root;
}

}  // namespace shardgraph
