#include "tools/interop/huggingface_config.h"

#include <cstdint>
#include <optional>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

using Json = nlohmann::json;

// Keys that do not change what a model computes, or only outside training:
// names, versions, special tokens, generation, classification heads.
constexpr absl::string_view kIgnored[] = {"model_type",
                                          "architectures",
                                          "_name_or_path",
                                          "name_or_path",
                                          "transformers_version",
                                          "torch_dtype",
                                          "dtype",
                                          "use_cache",
                                          "bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "sep_token_id",
                                          "unk_token_id",
                                          "decoder_start_token_id",
                                          "task_specific_params",
                                          "tokenizer_class",
                                          "prefix",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "return_dict",
                                          "id2label",
                                          "label2id",
                                          "num_labels",
                                          "_num_labels",
                                          "problem_type",
                                          "finetuning_task",
                                          "gradient_checkpointing",
                                          "torchscript",
                                          "use_bfloat16",
                                          "_attn_implementation",
                                          "_attn_implementation_autoset",
                                          "attn_implementation",
                                          "keys_to_ignore_at_inference",
                                          "tf_legacy_loss",
                                          "n_ctx",
                                          "reorder_and_upcast_attn",
                                          "summary_type",
                                          "summary_use_proj",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "is_llama_config",
                                          "max_window_layers",
                                          "do_sample",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "max_length",
                                          "min_length",
                                          "max_new_tokens",
                                          "repetition_penalty",
                                          "length_penalty",
                                          "no_repeat_ngram_size",
                                          "num_beams",
                                          "num_return_sequences",
                                          "early_stopping"};

// Reads keys of a JSON object and remembers which. The first wrong value is
// kept in status(); getters return their default then.
class Reader {
 public:
  Reader(const Json& json, std::string path)
      : json_(json), path_(std::move(path)) {}

  bool Present(const std::string& key) {
    known_.insert(key);
    return json_.contains(key);
  }
  bool Has(const std::string& key) {
    return Present(key) && !json_[key].is_null();
  }
  // Absent or null: `otherwise`; an error when there is none.
  int64_t Int(const std::string& key, std::optional<int64_t> otherwise) {
    if (!Has(key)) return Otherwise(key, otherwise);
    const Json& value = json_[key];
    if (value.is_number_integer() && value.get<int64_t>() >= 0 &&
        !(value.is_number_unsigned() &&
          value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)))
      return value.get<int64_t>();
    Wrong(key, "an integer of 0 or more");
    return 0;
  }
  double Double(const std::string& key, std::optional<double> otherwise) {
    if (!Has(key)) return Otherwise(key, otherwise);
    if (json_[key].is_number()) return json_[key].get<double>();
    Wrong(key, "a number");
    return 0;
  }
  bool Bool(const std::string& key, bool otherwise) {
    if (!Has(key)) return otherwise;
    if (json_[key].is_boolean()) return json_[key].get<bool>();
    Wrong(key, "true or false");
    return otherwise;
  }
  std::string String(const std::string& key, const std::string& otherwise) {
    if (!Has(key)) return otherwise;
    if (json_[key].is_string()) return json_[key].get<std::string>();
    Wrong(key, "a string");
    return otherwise;
  }
  // Absent, null or `value`.
  void MustBe(const std::string& key, const Json& value) {
    if (Has(key) && json_[key] != value)
      Wrong(key, absl::StrCat(JsonText(value), " in this version"));
  }
  void Ignore(const std::string& key) { known_.insert(key); }
  // Has(key).
  const Json& operator[](const std::string& key) const { return json_[key]; }

  void Wrong(const std::string& key, absl::string_view allowed) {
    Fail(absl::StrCat(path_, key, " is ", JsonText(json_[key]), "; it must be ",
                      allowed));
  }
  void Fail(const std::string& message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(message);
  }
  // The first error; else a key that nobody asked for.
  absl::Status Finish() {
    for (const auto& item : json_.items()) {
      if (known_.count(item.key()) > 0) continue;
      Fail(absl::StrCat(
          path_, item.key(), " is ", JsonText(item.value()).substr(0, 80),
          "; this key is not understood. Remove it only if the model computes "
          "the same without it"));
    }
    return status_;
  }

 private:
  template <typename T>
  T Otherwise(const std::string& key, const std::optional<T>& otherwise) {
    if (otherwise.has_value()) return *otherwise;
    Fail(absl::StrCat(path_, key, " is missing"));
    return T();
  }

  const Json& json_;
  const std::string path_;
  std::set<std::string> known_;
  absl::Status status_;
};

std::string Activation(const std::string& name) {
  // The same function under another name.
  if (name == "gelu_pytorch_tanh") return "gelu_new";
  if (name == "swish") return "silu";
  return name;
}

void ReadGpt2(Reader& in, Gpt2Spec* out) {
  out->set_vocab_size(in.Int("vocab_size", 50257));
  out->set_n_positions(in.Int("n_positions", 1024));
  out->set_n_embd(in.Int("n_embd", 768));
  out->set_n_layer(in.Int("n_layer", 12));
  out->set_n_head(in.Int("n_head", 12));
  out->set_n_inner(in.Int("n_inner", 0));
  out->set_activation_function(
      Activation(in.String("activation_function", "gelu_new")));
  out->set_layer_norm_epsilon(in.Double("layer_norm_epsilon", 1e-5));
  out->set_resid_pdrop(in.Double("resid_pdrop", 0.1));
  out->set_embd_pdrop(in.Double("embd_pdrop", 0.1));
  out->set_attn_pdrop(in.Double("attn_pdrop", 0.1));
  out->set_tie_word_embeddings(in.Bool("tie_word_embeddings", true));
  out->set_initializer_range(in.Double("initializer_range", 0.02));
  in.MustBe("scale_attn_weights", true);
  in.MustBe("scale_attn_by_inverse_layer_idx", false);
  in.MustBe("add_cross_attention", false);
}

// rope_theta and rope_scaling (v4), or rope_parameters with both (v5).
absl::Status ReadRope(Reader& in, LlamaSpec* out) {
  out->set_rope_theta(in.Double("rope_theta", 10000));
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    if (!in.Has(key)) continue;
    if (!in[key].is_object()) {
      in.Wrong(key, "an object");
      continue;
    }
    Reader rope(in[key], key + ".");
    out->set_rope_theta(rope.Double("rope_theta", out->rope_theta()));
    const std::string type =
        rope.String("rope_type", rope.String("type", "default"));
    rope.MustBe("partial_rotary_factor", 1.0);
    if (type == "llama3") {
      RopeScaling* scaling = out->mutable_rope_scaling();
      scaling->set_factor(rope.Double("factor", std::nullopt));
      scaling->set_low_freq_factor(
          rope.Double("low_freq_factor", std::nullopt));
      scaling->set_high_freq_factor(
          rope.Double("high_freq_factor", std::nullopt));
      scaling->set_original_max_position_embeddings(
          rope.Int("original_max_position_embeddings", std::nullopt));
    } else if (type != "default") {
      rope.Wrong(rope.Has("rope_type") ? "rope_type" : "type",
                 "\"default\" or \"llama3\"");
    }
    SG_RETURN_IF_ERROR(rope.Finish());
  }
  return absl::OkStatus();
}

absl::Status ReadLlama(Reader& in, const std::string& type, LlamaSpec* out) {
  const bool llama = type == "llama", qwen2 = type == "qwen2",
             qwen3 = type == "qwen3", mistral = type == "mistral";
  out->set_model_type(type);
  out->set_vocab_size(in.Int("vocab_size", std::nullopt));
  out->set_hidden_size(in.Int("hidden_size", std::nullopt));
  out->set_intermediate_size(in.Int("intermediate_size", std::nullopt));
  out->set_num_hidden_layers(in.Int("num_hidden_layers", std::nullopt));
  out->set_num_attention_heads(in.Int("num_attention_heads", std::nullopt));
  // Other families have other defaults for an absent key; null means as many
  // as heads in all of them.
  if (!llama && !in.Present("num_key_value_heads"))
    in.Fail("num_key_value_heads is missing");
  out->set_num_key_value_heads(in.Int("num_key_value_heads", 0));
  out->set_head_dim(
      in.Int("head_dim", qwen3 && !in.Present("head_dim") ? 128 : 0));
  out->set_max_position_embeddings(
      in.Int("max_position_embeddings",
             llama ? std::optional<int64_t>(2048) : std::nullopt));
  out->set_rms_norm_eps(in.Double("rms_norm_eps", 1e-6));
  out->set_tie_word_embeddings(in.Bool("tie_word_embeddings", false));
  out->set_attention_bias((llama || qwen3) && in.Bool("attention_bias", false));
  out->set_qkv_bias(qwen2);
  out->set_mlp_bias(llama && in.Bool("mlp_bias", false));
  out->set_qk_norm(qwen3);
  out->set_initializer_range(in.Double("initializer_range", 0.02));
  out->set_attention_dropout(in.Double("attention_dropout", 0));
  if (Activation(in.String("hidden_act", "silu")) != "silu")
    in.Wrong("hidden_act", "\"silu\"");
  in.MustBe("pretraining_tp", 1);
  in.MustBe("partial_rotary_factor", 1.0);
  in.MustBe("rope_interleaved", false);
  in.MustBe("use_mrope", false);
  if (mistral) {
    in.MustBe("sliding_window", nullptr);
  } else {
    in.MustBe("use_sliding_window", false);
    in.Ignore("sliding_window");
  }
  if (in.Has("layer_types")) {
    for (const Json& layer : in["layer_types"]) {
      if (layer != "full_attention")
        in.Wrong("layer_types", "\"full_attention\" for every layer");
    }
  }
  return ReadRope(in, out);
}

}  // namespace

absl::StatusOr<ModelSpec> ParseHuggingFaceConfig(absl::string_view text) {
  Json json;
  try {
    json = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("it is no JSON: ", error.what()));
  }
  if (!json.is_object())
    return absl::InvalidArgumentError("it is no JSON object");
  Reader in(json, "");
  for (const absl::string_view key : kIgnored) in.Ignore(std::string(key));
  in.MustBe("is_encoder_decoder", false);
  in.MustBe("is_decoder", false);
  in.MustBe("chunk_size_feed_forward", 0);
  in.MustBe("pruned_heads", Json::object());

  ModelSpec spec;
  const std::string type = in.String("model_type", "");
  if (type == "gpt2") {
    ReadGpt2(in, spec.mutable_gpt2());
  } else if (type == "llama" || type == "qwen2" || type == "qwen3" ||
             type == "mistral") {
    SG_RETURN_IF_ERROR(ReadLlama(in, type, spec.mutable_llama()));
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("model_type is \"", type,
                     "\"; gpt2, llama, qwen2, qwen3 and mistral can be read"));
  }
  SG_RETURN_IF_ERROR(in.Finish());
  return spec;
}

absl::StatusOr<ModelSpec> ReadHuggingFaceConfig(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/config.json");
  SG_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  absl::StatusOr<ModelSpec> spec = ParseHuggingFaceConfig(text);
  if (!spec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", spec.status().message()));
  }
  return spec;
}

}  // namespace shardgraph
