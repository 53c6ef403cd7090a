#include "tests/harness/fixture_models.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/files/json.h"
#include "kernels/check.h"
#include "kernels/reference/access.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using Values = std::vector<double>;

const FixtureModel kModels[] = {
    {"gpt2_tied",
     "gpt2 { vocab_size: 131 n_positions: 32 n_embd: 48 n_head: 4 n_layer: 3 "
     "resid_pdrop: 0 embd_pdrop: 0 attn_pdrop: 0 }"},
    {"gpt2_untied",
     "gpt2 { vocab_size: 131 n_positions: 32 n_embd: 36 n_head: 3 n_layer: 2 "
     "resid_pdrop: 0 embd_pdrop: 0 attn_pdrop: 0 tie_word_embeddings: false }"},
    {"llama_gqa_untied",
     "llama { vocab_size: 131 hidden_size: 48 intermediate_size: 100 "
     "num_hidden_layers: 3 num_attention_heads: 6 num_key_value_heads: 2 "
     "max_position_embeddings: 32 rms_norm_eps: 1e-5 }"},
    {"llama_tied",
     "llama { vocab_size: 131 hidden_size: 64 intermediate_size: 96 "
     "num_hidden_layers: 2 num_attention_heads: 4 num_key_value_heads: 2 "
     "head_dim: 16 max_position_embeddings: 32 rms_norm_eps: 1e-5 "
     "tie_word_embeddings: true }"},
};

}  // namespace

absl::Span<const FixtureModel> FixtureModels() { return kModels; }

std::map<std::string, Values> ReadFixtureTensors(const std::string& path) {
  const auto file =
      SafetensorsFile::Open(absl::StrCat("tests/fixtures/", path));
  SG_CHECK_OK(file);
  std::map<std::string, Values> tensors;
  for (const SafetensorsEntry& entry : (*file)->entries()) {
    const std::string data((*file)->Data(entry));  // aligned
    Values& elements = tensors[entry.name];
    elements.resize(NumElements(entry.shape));
    for (size_t i = 0; i < elements.size(); ++i)
      elements[i] = LoadElement(*entry.dtype, data.data(), i);
  }
  return tensors;
}

nlohmann::json ReadFixtureJson(const std::string& path) {
  std::ifstream file(absl::StrCat("tests/fixtures/", path));
  std::ostringstream text;
  text << file.rdbuf();
  return ParseJson(text.str());
}

std::map<std::string, Values> ReadFixtureWeights(const std::string& model) {
  std::map<std::string, Values> weights;
  for (auto& [name, elements] :
       ReadFixtureTensors(model + "/model.safetensors")) {
    if (absl::EndsWith(name, ".attn.bias")) continue;
    const bool bare = absl::StartsWith(model, "gpt2") &&
                      !absl::StartsWith(name, "transformer.") &&
                      !absl::StartsWith(name, "lm_head.");
    weights[absl::StrCat(bare ? "transformer." : "", name)] =
        std::move(elements);
  }
  return weights;
}

Values WithoutKeyBias(const nlohmann::json& expected, const std::string& name,
                      Values elements) {
  for (const nlohmann::json& bias : expected["key_biases"]) {
    if (bias["name"] != name) continue;
    elements.erase(elements.begin() + bias["begin"].get<int64_t>(),
                   elements.begin() + bias["end"].get<int64_t>());
  }
  return elements;
}

double KeyBiasMax(const nlohmann::json& expected, const std::string& name,
                  const Values& elements) {
  double largest = 0;
  for (const nlohmann::json& bias : expected["key_biases"]) {
    if (bias["name"] != name) continue;
    for (int64_t i = bias["begin"]; i < bias["end"]; ++i)
      largest = std::max(largest, std::abs(elements[i]));
  }
  return largest;
}

double L2Norm(const Values& a) { return L2Distance(a, Values(a.size())); }

double L2Distance(const Values& a, const Values& b) {
  SG_CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double Cosine(const Values& a, const Values& b) {
  SG_CHECK_EQ(a.size(), b.size());
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += a[i] * b[i];
  return dot / (L2Norm(a) * L2Norm(b));
}

}  // namespace shardgraph
