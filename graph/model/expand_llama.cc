#include <string>

#include "absl/strings/str_cat.h"
#include "graph/model/expand.h"
#include "graph/model/fields.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// `spec` with its defaults written out; what has none stays 0.
LlamaSpec WithDefaults(LlamaSpec spec) {
  if (spec.num_key_value_heads() == 0) {
    spec.set_num_key_value_heads(spec.num_attention_heads());
  }
  if (spec.max_position_embeddings() == 0) {
    spec.set_max_position_embeddings(2048);
  }
  if (!spec.has_rms_norm_eps()) spec.set_rms_norm_eps(1e-6);
  if (!spec.has_rope_theta()) spec.set_rope_theta(10000);
  if (!spec.has_initializer_range()) spec.set_initializer_range(0.02);
  if (spec.model_type().empty()) spec.set_model_type("llama");
  return spec;
}

absl::Status Check(const LlamaSpec& spec) {
  SG_RETURN_IF_ERROR(CheckSize("model.llama.vocab_size", spec.vocab_size()));
  SG_RETURN_IF_ERROR(CheckSize("model.llama.hidden_size", spec.hidden_size()));
  SG_RETURN_IF_ERROR(
      CheckSize("model.llama.intermediate_size", spec.intermediate_size()));
  SG_RETURN_IF_ERROR(
      CheckCopies("model.llama.num_hidden_layers", spec.num_hidden_layers()));
  SG_RETURN_IF_ERROR(
      CheckSize("model.llama.num_attention_heads", spec.num_attention_heads()));
  SG_RETURN_IF_ERROR(
      CheckSize("model.llama.num_key_value_heads", spec.num_key_value_heads()));
  SG_RETURN_IF_ERROR(CheckDivides(
      "model.llama.num_key_value_heads", spec.num_key_value_heads(),
      "num_attention_heads", spec.num_attention_heads()));
  int64_t head_dim = spec.head_dim();
  if (head_dim == 0) {
    SG_RETURN_IF_ERROR(CheckDivides("model.llama.num_attention_heads",
                                    spec.num_attention_heads(), "hidden_size",
                                    spec.hidden_size()));
    head_dim = spec.hidden_size() / spec.num_attention_heads();
  }
  SG_RETURN_IF_ERROR(CheckSize("model.llama.head_dim", head_dim));
  if (head_dim % 2 != 0) {
    return BadField("model.llama.head_dim", head_dim,
                    "must be even for rotary positions; choose hidden_size and "
                    "num_attention_heads, or head_dim, accordingly");
  }
  SG_RETURN_IF_ERROR(CheckSize("model.llama.max_position_embeddings",
                               spec.max_position_embeddings()));
  SG_RETURN_IF_ERROR(
      CheckPositive("model.llama.rms_norm_eps", spec.rms_norm_eps()));
  SG_RETURN_IF_ERROR(
      CheckPositive("model.llama.rope_theta", spec.rope_theta()));
  if (spec.has_rope_scaling()) {
    SG_RETURN_IF_ERROR(
        CheckRopeScaling("model.llama.rope_scaling", spec.rope_scaling()));
  }
  SG_RETURN_IF_ERROR(
      CheckPositive("model.llama.initializer_range", spec.initializer_range()));
  SG_RETURN_IF_ERROR(
      CheckRate("model.llama.attention_dropout", spec.attention_dropout()));
  for (const char* known : {"llama", "qwen2", "qwen3", "mistral"}) {
    if (spec.model_type() == known) return absl::OkStatus();
  }
  return BadField("model.llama.model_type",
                  absl::StrCat("\"", spec.model_type(), "\""),
                  "must be one of \"llama\", \"qwen2\", \"qwen3\", "
                  "\"mistral\"");
}

// Hugging Face's classes are named LlamaMLP, Qwen2MLP, ...
std::string ClassPrefix(const LlamaSpec& spec) {
  std::string prefix = spec.model_type();
  prefix[0] = static_cast<char>(prefix[0] - 'a' + 'A');
  return prefix;
}

ModuleSpec* Named(ModuleSpec* module, const char* name,
                  const std::string& class_name) {
  module->set_name(name);
  module->set_class_name(class_name);
  return module;
}

void FillNorm(const LlamaSpec& spec, const char* name, ModuleSpec* module) {
  RmsNormSpec* norm =
      Named(module, name, ClassPrefix(spec) + "RMSNorm")->mutable_rms_norm();
  norm->set_width(spec.hidden_size());
  norm->set_epsilon(spec.rms_norm_eps());
}

void FillAttention(const LlamaSpec& spec, AttentionSpec* attention) {
  attention->set_width(spec.hidden_size());
  attention->set_heads(spec.num_attention_heads());
  attention->set_key_value_heads(spec.num_key_value_heads());
  attention->set_head_dim(spec.head_dim());
  attention->set_qkv_bias(spec.attention_bias() || spec.qkv_bias());
  attention->set_output_bias(spec.attention_bias());
  attention->set_qk_norm(spec.qk_norm());
  if (spec.qk_norm()) attention->set_qk_norm_epsilon(spec.rms_norm_eps());
  attention->set_dropout(spec.attention_dropout());
  RotarySpec* rotary = attention->mutable_rotary();
  rotary->set_theta(spec.rope_theta());
  rotary->set_max_positions(spec.max_position_embeddings());
  if (spec.has_rope_scaling()) {
    *rotary->mutable_scaling() = spec.rope_scaling();
  }
  attention->mutable_init()->set_std(spec.initializer_range());
  attention->mutable_output_init()->set_std(spec.initializer_range());
}

void FillBlock(const LlamaSpec& spec, ModuleSpec* block) {
  const std::string prefix = ClassPrefix(spec);
  block->set_class_name(prefix + "DecoderLayer");
  block->set_block(true);

  ResidualSpec* first =
      block->mutable_sequential()->add_children()->mutable_residual();
  FillNorm(spec, "input_layernorm", first->add_children());
  FillAttention(spec,
                Named(first->add_children(), "self_attn", prefix + "Attention")
                    ->mutable_attention());

  ResidualSpec* second =
      block->mutable_sequential()->add_children()->mutable_residual();
  FillNorm(spec, "post_attention_layernorm", second->add_children());
  FeedForwardSpec* mlp = Named(second->add_children(), "mlp", prefix + "MLP")
                             ->mutable_feed_forward();
  mlp->set_width(spec.hidden_size());
  mlp->set_inner(spec.intermediate_size());
  mlp->set_gated(true);
  mlp->set_bias(spec.mlp_bias());
  mlp->mutable_init()->set_std(spec.initializer_range());
  mlp->mutable_output_init()->set_std(spec.initializer_range());
}

}  // namespace

absl::StatusOr<ModuleSpec> ExpandLlama(const LlamaSpec& shorthand) {
  const LlamaSpec spec = WithDefaults(shorthand);
  SG_RETURN_IF_ERROR(Check(spec));

  ModuleSpec root;
  root.set_class_name(ClassPrefix(spec) + "ForCausalLM");
  SequentialSpec* top = root.mutable_sequential();
  SequentialSpec* model =
      Named(top->add_children(), "model", ClassPrefix(spec) + "Model")
          ->mutable_sequential();

  EmbeddingSpec* embed_tokens =
      Named(model->add_children(), "embed_tokens", "Embedding")
          ->mutable_embedding();
  embed_tokens->set_vocab_size(spec.vocab_size());
  embed_tokens->set_width(spec.hidden_size());
  embed_tokens->mutable_init()->set_std(spec.initializer_range());
  RepeatSpec* layers =
      Named(model->add_children(), "layers", "ModuleList")->mutable_repeat();
  layers->set_count(spec.num_hidden_layers());
  FillBlock(spec, layers->mutable_body());
  FillNorm(spec, "norm", model->add_children());

  HeadSpec* head =
      Named(top->add_children(), "lm_head", "Linear")->mutable_head();
  head->set_vocab_size(spec.vocab_size());
  head->set_width(spec.hidden_size());
  if (spec.tie_word_embeddings()) {
    head->set_tied_to("model.embed_tokens");
  } else {
    head->mutable_init()->set_std(spec.initializer_range());
  }
  return root;
}

}  // namespace shardgraph
