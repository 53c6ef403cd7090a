// Weights of Hugging Face folders: model.safetensors, or several files with
// model.safetensors.index.json.
#ifndef FSDP_CHECKPOINT_HUGGINGFACE_H_
#define FSDP_CHECKPOINT_HUGGINGFACE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/train/training_plan.h"
#include "graph/executor.h"

namespace shardgraph {

// The tensors of a folder by name. Immutable.
class HuggingFaceFolder {
 public:
  struct StoredTensor {
    const SafetensorsFile* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };

  // Maps every file. NotFound or InvalidArgument names the file and what is
  // wrong.
  static absl::StatusOr<std::unique_ptr<HuggingFaceFolder>> Open(
      const std::string& folder);

  const std::string& path() const { return path_; }
  const std::map<std::string, StoredTensor>& tensors() const {
    return tensors_;
  }

 private:
  HuggingFaceFolder() = default;

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, StoredTensor> tensors_;
};

// Which tensor of the folder each parameter of the model is. Tensors may have
// the model's names with or without their first component ("transformer.",
// "model."); a tied parameter may come under any of its names; attention masks
// and rotary tables are ignored. InvalidArgument names a parameter without a
// tensor, a wrong shape or dtype, or a tensor that the model has no use for.
// With `patterns` (parameter_patterns.h) only the parameters that they match
// need a tensor, and the folder may be of another model in all others.
absl::StatusOr<std::map<const Parameter*, HuggingFaceFolder::StoredTensor>>
MatchParameters(const HuggingFaceFolder& folder, const Model& model,
                const std::vector<std::string>& patterns = {});

// Fills this rank's masters and compute copies of the parameters that are
// matched from the folder, whatever the world size; adapters and moments are
// not touched. Holds less than a MiB, and pages of as much of the files.
absl::Status LoadHuggingFaceWeights(
    const std::string& folder, const TrainingPlan& plan, int shard,
    Executor& executor, const std::vector<std::string>& patterns = {});

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_HUGGINGFACE_H_
