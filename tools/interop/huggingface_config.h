// The model that a Hugging Face config.json describes, read and written.
//
// Understood: gpt2, llama, qwen2, qwen3 and mistral, with the keys of
// transformers v4 (rope_theta, rope_scaling) and v5 (rope_parameters). A key
// that is not understood is refused by name: the model might not be what it
// says.
#ifndef TOOLS_INTEROP_HUGGINGFACE_CONFIG_H_
#define TOOLS_INTEROP_HUGGINGFACE_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor.h"
#include "proto/model.pb.h"

namespace shardgraph {

// Name under which a checkpoint's manifest keeps the text of the config.json
// that the model came with.
inline constexpr char kConfigExtra[] = "config.json";

// Reads FOLDER/config.json. InvalidArgument names the file, the key, its value
// and what is understood.
absl::StatusOr<ModelSpec> ReadHuggingFaceConfig(const std::string& folder);

// The same of the text of a config.json; messages do not name the file.
absl::StatusOr<ModelSpec> ParseHuggingFaceConfig(absl::string_view text);

// A config.json of the model, with every value written out and the keys of
// transformers v4, which v5 reads too. `dtype` is that of the weights. `base`:
// the text of the config.json that the model once came with, of which special
// tokens and the like are kept; or empty. InvalidArgument names the field that
// the family cannot say.
absl::StatusOr<std::string> HuggingFaceConfigText(const ModelSpec& spec,
                                                  DType dtype,
                                                  const std::string& base);

}  // namespace shardgraph

#endif  // TOOLS_INTEROP_HUGGINGFACE_CONFIG_H_
