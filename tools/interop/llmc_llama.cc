#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/status_macros.h"
#include "tools/interop/llmc_weights.h"

namespace shardgraph {
namespace {

// 256 x i32 and 256 x f32.
constexpr int64_t kIntBytes = 256 * 4, kHeaderBytes = 2 * kIntBytes;

// In the header's order.
constexpr const char* kNames[] = {"block size", "vocabulary", "layers",
                                  "heads",      "key heads",  "channels",
                                  "multiple"};

// The number that was written before it was rounded to F32: 1.3, 1e-05.
double Decimal(float value) {
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

// Of the feed-forward layer, as llm.c computes it.
int64_t Inner(int64_t channels, double multiplier, int64_t multiple) {
  int64_t inner = 8 * channels / 3;
  if (multiplier > 0)
    inner = static_cast<int64_t>(multiplier * static_cast<double>(inner));
  return (inner + multiple - 1) / multiple * multiple;
}

}  // namespace

absl::StatusOr<ModelWeights> OpenLlmcLlama(
    std::unique_ptr<LlmcWeights> weights) {
  int32_t header[10] = {};
  float numbers[3] = {};
  const int64_t bytes = weights->file().size();
  if (bytes < kHeaderBytes)
    return weights->Wrong("it is shorter than a Llama's header of 2048 bytes");
  std::memcpy(header, weights->file().data(), sizeof(header));
  std::memcpy(numbers, weights->file().data() + kIntBytes, sizeof(numbers));
  SG_ASSIGN_OR_RETURN(const DType dtype, LlmcDType(*weights, header[1]));
  for (int i = 2; i < 9; ++i) {
    if (header[i] >= 1) continue;
    return weights->Wrong(absl::StrCat("number ", i, " of its header (",
                                       kNames[i - 2], ") is ", header[i],
                                       "; sizes are 1 or more"));
  }
  const int64_t vocabulary = header[3], layers = header[4], heads = header[5],
                key_heads = header[6], channels = header[7];
  if (channels % heads != 0 || channels / heads % 2 != 0 ||
      heads % key_heads != 0) {
    return weights->Wrong(
        absl::StrCat("it has ", channels, " channels, ", heads, " heads and ",
                     key_heads, " key heads, which do not divide each other"));
  }
  if (header[9] != 0 && header[9] != 1) {
    return weights->Wrong(
        absl::StrCat("number 9 of its header (whether rotary "
                     "frequencies are scaled) is ",
                     header[9], "; it must be 0 or 1"));
  }
  const double multiplier = Decimal(numbers[0]), epsilon = Decimal(numbers[1]);
  if (!(multiplier >= 0 && multiplier < 1000) ||
      !(epsilon > 0 && epsilon < 1) ||
      !(numbers[2] > 0 && std::isfinite(numbers[2]))) {
    return weights->Wrong(absl::StrCat(
        "its feed-forward multiplier is ", numbers[0], ", the norms' epsilon ",
        numbers[1], " and theta ", numbers[2], ": no such model can be"));
  }
  const int64_t inner = Inner(channels, multiplier, header[8]);
  // Before sizes are multiplied: the file must hold such matrices.
  if (channels * channels > bytes || vocabulary * channels > bytes ||
      inner * channels > bytes || layers > bytes) {
    return weights->Wrong(absl::StrCat("it has ", bytes,
                                       " bytes, too few for its header: it is "
                                       "truncated"));
  }

  ModelWeights result;
  LlamaSpec* llama = result.config.mutable_model()->mutable_llama();
  llama->set_model_type("llama");
  llama->set_vocab_size(vocabulary);
  llama->set_hidden_size(channels);
  llama->set_intermediate_size(inner);
  llama->set_num_hidden_layers(layers);
  llama->set_num_attention_heads(heads);
  llama->set_num_key_value_heads(key_heads);
  llama->set_max_position_embeddings(header[2]);
  llama->set_rms_norm_eps(epsilon);
  llama->set_rope_theta(Decimal(numbers[2]));
  if (header[9] == 1) {
    // llm.c knows these alone.
    RopeScaling* scaling = llama->mutable_rope_scaling();
    scaling->set_factor(8);
    scaling->set_low_freq_factor(1);
    scaling->set_high_freq_factor(4);
    scaling->set_original_max_position_embeddings(8192);
  }
  absl::StatusOr<std::unique_ptr<Model>> model =
      MakeModel(result.config.model());
  if (!model.ok()) return weights->Wrong(model.status().message());
  result.model = *std::move(model);

  // llm.c rotates neighbouring elements of a head, as Meta's files do; Hugging
  // Face's rows are in the order that rotates halves.
  weights->Begin(*result.model, dtype, kHeaderBytes);
  const auto each_layer = [&](const char* name) {
    for (int64_t layer = 0; layer < layers; ++layer)
      weights->Next(absl::StrCat("model.layers.", layer, ".", name));
  };
  weights->Next("model.embed_tokens.weight");
  each_layer("input_layernorm.weight");
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string attention =
        absl::StrCat("model.layers.", layer, ".self_attn.");
    weights->Next(attention + "q_proj.weight", LlmcOrder::kInterleaved, heads);
    weights->Next(attention + "k_proj.weight", LlmcOrder::kInterleaved,
                  key_heads);
    weights->Next(attention + "v_proj.weight");
  }
  each_layer("self_attn.o_proj.weight");
  each_layer("post_attention_layernorm.weight");
  each_layer("mlp.up_proj.weight");
  each_layer("mlp.gate_proj.weight");
  each_layer("mlp.down_proj.weight");
  weights->Next("model.norm.weight");
  weights->Next("lm_head.weight");
  SG_RETURN_IF_ERROR(weights->End());
  result.source = std::move(weights);
  return result;
}

}  // namespace shardgraph
