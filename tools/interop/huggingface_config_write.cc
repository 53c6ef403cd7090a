#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/files/json.h"
#include "nlohmann/json.hpp"
#include "tools/interop/huggingface_config.h"

namespace shardgraph {
namespace {

using Json = nlohmann::json;

// Keys that are taken over from a config.json that the model once came with:
// what a model computes does not depend on them.
constexpr const char* kKept[] = {"bos_token_id",
                                 "eos_token_id",
                                 "pad_token_id",
                                 "sep_token_id",
                                 "unk_token_id",
                                 "tokenizer_class",
                                 "use_cache",
                                 "task_specific_params",
                                 "transformers_version",
                                 "summary_type",
                                 "summary_use_proj",
                                 "summary_activation",
                                 "summary_first_dropout",
                                 "summary_proj_to_labels"};

absl::Status Wrong(absl::string_view field, const absl::AlphaNum& value,
                   absl::string_view type) {
  return absl::InvalidArgumentError(absl::StrCat(
      "model.llama.", field, " is ", value, ", which models of the type \"",
      type, "\" cannot say; set model.llama.model_type to one that can"));
}

const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF64:
      return "float64";
    default:
      return "float32";
  }
}

void WriteGpt2(const Gpt2Spec& spec, Json* out) {
  const auto size = [](int64_t value, int64_t otherwise) {
    return value == 0 ? otherwise : value;
  };
  (*out)["architectures"] = {"GPT2LMHeadModel"};
  (*out)["model_type"] = "gpt2";
  (*out)["vocab_size"] = size(spec.vocab_size(), 50257);
  (*out)["n_positions"] = size(spec.n_positions(), 1024);
  (*out)["n_embd"] = size(spec.n_embd(), 768);
  (*out)["n_layer"] = size(spec.n_layer(), 12);
  (*out)["n_head"] = size(spec.n_head(), 12);
  (*out)["n_inner"] =
      spec.n_inner() == 0 ? Json(nullptr) : Json(spec.n_inner());
  (*out)["activation_function"] = spec.activation_function().empty()
                                      ? "gelu_new"
                                      : spec.activation_function();
  (*out)["layer_norm_epsilon"] =
      spec.has_layer_norm_epsilon() ? spec.layer_norm_epsilon() : 1e-5;
  (*out)["resid_pdrop"] = spec.has_resid_pdrop() ? spec.resid_pdrop() : 0.1;
  (*out)["embd_pdrop"] = spec.has_embd_pdrop() ? spec.embd_pdrop() : 0.1;
  (*out)["attn_pdrop"] = spec.has_attn_pdrop() ? spec.attn_pdrop() : 0.1;
  (*out)["tie_word_embeddings"] =
      !spec.has_tie_word_embeddings() || spec.tie_word_embeddings();
  (*out)["initializer_range"] =
      spec.has_initializer_range() ? spec.initializer_range() : 0.02;
}

absl::Status WriteLlama(const LlamaSpec& spec, Json* out) {
  const std::string type =
      spec.model_type().empty() ? "llama" : spec.model_type();
  static const std::map<std::string, std::string> kArchitectures = {
      {"llama", "LlamaForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},
      {"mistral", "MistralForCausalLM"}};
  const auto architecture = kArchitectures.find(type);
  if (architecture == kArchitectures.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.llama.model_type is \"", type,
                     "\"; llama, qwen2, qwen3 and mistral can be written"));
  }
  const bool llama = type == "llama", qwen2 = type == "qwen2",
             qwen3 = type == "qwen3";
  if (spec.qk_norm() != qwen3) return Wrong("qk_norm", spec.qk_norm(), type);
  if (spec.qkv_bias() != qwen2) return Wrong("qkv_bias", spec.qkv_bias(), type);
  if (spec.attention_bias() && !llama && !qwen3)
    return Wrong("attention_bias", spec.attention_bias(), type);
  if (spec.mlp_bias() && !llama)
    return Wrong("mlp_bias", spec.mlp_bias(), type);

  (*out)["architectures"] = {architecture->second};
  (*out)["model_type"] = type;
  (*out)["vocab_size"] = spec.vocab_size();
  (*out)["hidden_size"] = spec.hidden_size();
  (*out)["intermediate_size"] = spec.intermediate_size();
  (*out)["num_hidden_layers"] = spec.num_hidden_layers();
  (*out)["num_attention_heads"] = spec.num_attention_heads();
  (*out)["num_key_value_heads"] = spec.num_key_value_heads() == 0
                                      ? spec.num_attention_heads()
                                      : spec.num_key_value_heads();
  (*out)["head_dim"] = spec.head_dim() == 0
                           ? spec.hidden_size() / spec.num_attention_heads()
                           : spec.head_dim();
  (*out)["max_position_embeddings"] = spec.max_position_embeddings() == 0
                                          ? 2048
                                          : spec.max_position_embeddings();
  (*out)["hidden_act"] = "silu";
  (*out)["rms_norm_eps"] = spec.has_rms_norm_eps() ? spec.rms_norm_eps() : 1e-6;
  (*out)["tie_word_embeddings"] = spec.tie_word_embeddings();
  (*out)["attention_dropout"] = spec.attention_dropout();
  (*out)["initializer_range"] =
      spec.has_initializer_range() ? spec.initializer_range() : 0.02;
  (*out)["rope_theta"] = spec.has_rope_theta() ? spec.rope_theta() : 10000.0;
  (*out)["rope_scaling"] = nullptr;
  if (spec.has_rope_scaling()) {
    const RopeScaling& scaling = spec.rope_scaling();
    (*out)["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor()},
                              {"low_freq_factor", scaling.low_freq_factor()},
                              {"high_freq_factor", scaling.high_freq_factor()},
                              {"original_max_position_embeddings",
                               scaling.original_max_position_embeddings()}};
  }
  if (llama || qwen3) (*out)["attention_bias"] = spec.attention_bias();
  if (llama) (*out)["mlp_bias"] = spec.mlp_bias();
  if (qwen2 || qwen3) (*out)["use_sliding_window"] = false;
  if (!llama) (*out)["sliding_window"] = nullptr;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> HuggingFaceConfigText(const ModelSpec& spec,
                                                  DType dtype,
                                                  const std::string& base) {
  Json out = Json::object();
  // Spoken out: without them transformers takes those of the family's first
  // model.
  for (const char* key : {"bos_token_id", "eos_token_id"}) out[key] = nullptr;
  const Json before = ParseJson(base);
  if (before.is_object()) {
    for (const char* key : kKept) {
      if (before.contains(key)) out[key] = before[key];
    }
  }
  out["torch_dtype"] = NameOf(dtype);
  if (spec.has_gpt2()) {
    WriteGpt2(spec.gpt2(), &out);
  } else if (spec.has_llama()) {
    const absl::Status status = WriteLlama(spec.llama(), &out);
    if (!status.ok()) return status;
  } else {
    return absl::InvalidArgumentError(
        "the model is composed of modules (model.module), which no config.json "
        "can describe; models given as model.gpt2 or model.llama can be "
        "written");
  }
  return JsonText(out, 2) + "\n";
}

}  // namespace shardgraph
