#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "tools/interop/llmc_weights.h"

namespace shardgraph {
namespace {

constexpr int64_t kHeaderBytes = 256 * 4;

// One tensor of every layer, or of the model: its name behind
// "transformer.h.N." (or "transformer."), and how it is stored.
struct Part {
  const char* name;
  bool per_layer;
  LlmcOrder order = LlmcOrder::kSame;
};

// In the file's order.
constexpr Part kParts[] = {{"wte.weight", false},
                           {"wpe.weight", false},
                           {"ln_1.weight", true},
                           {"ln_1.bias", true},
                           {"attn.c_attn.weight", true, LlmcOrder::kTransposed},
                           {"attn.c_attn.bias", true},
                           {"attn.c_proj.weight", true, LlmcOrder::kTransposed},
                           {"attn.c_proj.bias", true},
                           {"ln_2.weight", true},
                           {"ln_2.bias", true},
                           {"mlp.c_fc.weight", true, LlmcOrder::kTransposed},
                           {"mlp.c_fc.bias", true},
                           {"mlp.c_proj.weight", true, LlmcOrder::kTransposed},
                           {"mlp.c_proj.bias", true},
                           {"ln_f.weight", false},
                           {"ln_f.bias", false}};

}  // namespace

absl::StatusOr<ModelWeights> OpenLlmcGpt2(
    std::unique_ptr<LlmcWeights> weights) {
  int32_t header[8] = {};
  std::memcpy(header, weights->file().data(), sizeof(header));
  SG_ASSIGN_OR_RETURN(const DType dtype, LlmcDType(*weights, header[1]));
  const int32_t vocabulary = header[3], layers = header[4], padded = header[7];
  ModelWeights result;
  Gpt2Spec* gpt2 = result.config.mutable_model()->mutable_gpt2();
  gpt2->set_n_positions(header[2]);
  gpt2->set_vocab_size(vocabulary);
  gpt2->set_n_layer(layers);
  gpt2->set_n_head(header[5]);
  gpt2->set_n_embd(header[6]);
  // What llm.c trains with.
  gpt2->set_resid_pdrop(0);
  gpt2->set_embd_pdrop(0);
  gpt2->set_attn_pdrop(0);
  for (int i = 2; i < 8; ++i) {
    if (header[i] >= 1) continue;
    return weights->Wrong(absl::StrCat("number ", i, " of its header is ",
                                       header[i], "; sizes are 1 or more"));
  }
  if (padded < vocabulary) {
    return weights->Wrong(absl::StrCat("its padded vocabulary of ", padded,
                                       " is smaller than the vocabulary of ",
                                       vocabulary));
  }
  // Before sizes are multiplied: the file must hold such matrices.
  const int64_t bytes = weights->file().size(), width = header[6];
  if (width * width > bytes || header[2] * width > bytes ||
      padded * width > bytes || layers > bytes) {
    return weights->Wrong(absl::StrCat("it has ", bytes,
                                       " bytes, too few for its header: it is "
                                       "truncated"));
  }
  absl::StatusOr<std::unique_ptr<Model>> model =
      MakeModel(result.config.model());
  if (!model.ok()) return weights->Wrong(model.status().message());
  result.model = *std::move(model);
  weights->Begin(*result.model, dtype, kHeaderBytes);
  for (const Part& part : kParts) {
    const bool tokens = absl::StartsWith(part.name, "wte");
    for (int layer = 0; layer < (part.per_layer ? layers : 1); ++layer) {
      weights->Next(part.per_layer
                        ? absl::StrCat("transformer.h.", layer, ".", part.name)
                        : absl::StrCat("transformer.", part.name),
                    part.order, 1, tokens ? padded * width : 0);
    }
  }
  SG_RETURN_IF_ERROR(weights->End());
  result.source = std::move(weights);
  return result;
}

}  // namespace shardgraph
