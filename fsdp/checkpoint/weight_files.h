// Writes the weights of a WeightSource: as a Hugging Face folder's files, or as
// a checkpoint without moments.
#ifndef FSDP_CHECKPOINT_WEIGHT_FILES_H_
#define FSDP_CHECKPOINT_WEIGHT_FILES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/weight_source.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Writes model.safetensors into the folder; if that would have more than
// `max_file_bytes` of data, model-00001-of-0000N.safetensors, ... and
// model.safetensors.index.json. Tensors are put into files as transformers'
// save_pretrained does: in order, a file is closed before it would exceed the
// limit, and a tensor larger than the limit has a file of its own. The folder
// exists. Errors name the file.
absl::Status WriteHuggingFaceWeights(WeightSource& source,
                                     const std::string& folder,
                                     int64_t max_file_bytes);

// Writes FOLDER/step_0000000, a checkpoint with the weights in their dtypes,
// no moments, and the state of a run that has taken no step. `config` is
// resolved. The folder exists; the checkpoint in it does not.
absl::Status WriteWeightsCheckpoint(
    WeightSource& source, const TrainConfig& config,
    const std::map<std::string, std::string>& extra, const std::string& folder);

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_WEIGHT_FILES_H_
