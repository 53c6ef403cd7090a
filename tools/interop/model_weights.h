// ModelWeights: a model with its weights, from whatever holds them: a Hugging
// Face folder, a checkpoint of ours, or a model file of llm.c.
#ifndef TOOLS_INTEROP_MODEL_WEIGHTS_H_
#define TOOLS_INTEROP_MODEL_WEIGHTS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/weight_source.h"
#include "graph/model/module.h"
#include "kernels/tensor.h"
#include "proto/train.pb.h"

namespace shardgraph {

struct ModelWeights {
  TrainConfig config;  // the run's; or only its model is set
  std::unique_ptr<Model> model;
  std::unique_ptr<WeightSource> source;
  std::string huggingface_config;  // text of config.json; may be empty
  // Where tokenizer.json and the like are; may be empty.
  std::string folder;
};

// Each fails with InvalidArgument that names the file and what is wrong.
//
// A folder with config.json and safetensors files.
absl::StatusOr<ModelWeights> OpenHuggingFaceFolder(const std::string& folder);
// A checkpoint, or the newest one of a run directory; weights only.
absl::StatusOr<ModelWeights> OpenCheckpointWeights(const std::string& path);
// A GPT-2 of llm.c (gpt2_124M.bin): 256 x i32 header (20240326; 3: F32 or 5:
// BF16; positions, vocabulary, layers, heads, channels, padded vocabulary),
// then the tensors of all layers in turn, matrices [out, in]. The rows that pad
// the vocabulary are left out.
//
// Or a Llama of llm.c (llama3.1_8B.bin): 256 x i32 header (20240803; 3 or 5;
// positions, vocabulary, layers, heads, key heads, channels, multiple of the
// feed-forward width, whether rotary frequencies are scaled), 256 x f32
// (multiplier of that width, epsilon, theta), then the tensors of all layers in
// turn: token table, norm, queries with keys and values, output, norm, up,
// gate, down; norm, head.
absl::StatusOr<ModelWeights> OpenLlmcModel(const std::string& path);

// The same weights in F32, BF16 or F16, each rounded once through F32.
std::unique_ptr<WeightSource> CastWeights(std::unique_ptr<WeightSource> source,
                                          DType dtype);

}  // namespace shardgraph

#endif  // TOOLS_INTEROP_MODEL_WEIGHTS_H_
