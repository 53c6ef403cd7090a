// Low-rank adapters (LoraSpec) on their way in and out.
#ifndef TOOLS_INTEROP_ADAPTERS_H_
#define TOOLS_INTEROP_ADAPTERS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "graph/model/module.h"
#include "tools/interop/model_weights.h"

namespace shardgraph {

// How the names of an adapter's two parameters end, behind their module's.
inline constexpr absl::string_view kAdapterA = ".lora_A.weight",
                                   kAdapterB = ".lora_B.weight";

// The weights of a model with adapters merged into it: W + alpha / rank x B A
// in FP32, rounded once to W's dtype; no adapters are left. `weights` then says
// so in config and model too.
absl::Status MergeAdapters(ModelWeights* weights);

// Adds the adapter of a folder of Hugging Face's PEFT (adapter_config.json and
// adapter_model.safetensors) to weights that have none; config and model then
// have it too. InvalidArgument names the file and what is not understood, or
// does not fit the model.
absl::Status AddPeftAdapter(const std::string& folder, ModelWeights* weights);

// Writes the adapters of `weights`, which has some, and nothing else, as PEFT
// does, into a folder that is there.
absl::Status WritePeftAdapter(const ModelWeights& weights,
                              const std::string& folder);

// Whether the linear module has weights [in, out].
bool IsInputMajor(const Module& root, absl::string_view module);

}  // namespace shardgraph

#endif  // TOOLS_INTEROP_ADAPTERS_H_
