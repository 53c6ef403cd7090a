#include "tools/interop/model_weights.h"

#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/checkpoint_reader.h"
#include "fsdp/checkpoint/huggingface.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/files/durable_file.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "tools/interop/huggingface_config.h"
#include "tools/program/program.h"

namespace shardgraph {
namespace {

using WeightTensor = SafetensorsWriter::Tensor;

class HuggingFaceWeights : public WeightSource {
 public:
  HuggingFaceWeights(std::unique_ptr<HuggingFaceFolder> folder,
                     const std::map<const Parameter*,
                                    HuggingFaceFolder::StoredTensor>& matched,
                     const Model& model)
      : folder_(std::move(folder)) {
    for (const Parameter* parameter : model.parameters()) {
      stored_.push_back(matched.at(parameter));
      tensors_.push_back(
          {parameter->name, *stored_.back().entry->dtype, parameter->shape});
    }
  }

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    const HuggingFaceFolder::StoredTensor& stored = stored_[tensor];
    const absl::string_view data = stored.file->Data(*stored.entry);
    std::memcpy(bytes.data(),
                data.data() + begin * SizeOf(tensors_[tensor].dtype),
                bytes.size());
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<HuggingFaceFolder> folder_;
  std::vector<HuggingFaceFolder::StoredTensor> stored_;
  std::vector<WeightTensor> tensors_;
};

class CheckpointWeights : public WeightSource {
 public:
  CheckpointWeights(const std::string& folder, CheckpointManifest manifest)
      : manifest_(std::move(manifest)), reader_(folder, manifest_) {}

  absl::Status Match(const std::string& folder, const Model& model) {
    for (const Parameter* parameter : model.parameters()) {
      const CheckpointTensor* tensor = reader_.Find(parameter->name);
      DType dtype = DType::kF32;
      if (tensor == nullptr ||
          Dims(tensor->shape().begin(), tensor->shape().end()) !=
              parameter->shape ||
          !ParseDType(tensor->dtype(), &dtype) || !IsFloating(dtype)) {
        return absl::DataLossError(
            absl::StrCat("checkpoint ", folder, " has no weights for ",
                         parameter->name, ", which its own model has"));
      }
      stored_.push_back(tensor);
      tensors_.push_back({parameter->name, dtype, parameter->shape});
    }
    return absl::OkStatus();
  }

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    const int64_t size = SizeOf(tensors_[tensor].dtype);
    return reader_.Read(*stored_[tensor], begin, bytes.size() / size,
                        [&](int64_t first, DType, absl::string_view run) {
                          std::memcpy(bytes.data() + first * size, run.data(),
                                      run.size());
                          return absl::OkStatus();
                        });
  }

 private:
  const CheckpointManifest manifest_;
  CheckpointReader reader_;
  std::vector<const CheckpointTensor*> stored_;
  std::vector<WeightTensor> tensors_;
};

class CastSource : public WeightSource {
 public:
  CastSource(std::unique_ptr<WeightSource> source, DType dtype)
      : source_(std::move(source)),
        tensors_(source_->tensors().begin(), source_->tensors().end()) {
    SG_CHECK(dtype == DType::kF32 || dtype == DType::kBF16 ||
             dtype == DType::kF16);
    for (WeightTensor& tensor : tensors_) tensor.dtype = dtype;
  }

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    const DType from = source_->tensors()[tensor].dtype,
                to = tensors_[tensor].dtype;
    if (from == to) return source_->Read(tensor, begin, bytes);
    const int64_t elements = bytes.size() / SizeOf(to);
    stored_.resize(elements * SizeOf(from));
    SG_RETURN_IF_ERROR(source_->Read(tensor, begin, absl::MakeSpan(stored_)));
    values_.resize(elements);
    ReadAsFloat(from, absl::string_view(stored_.data(), stored_.size()), 0,
                absl::MakeSpan(values_));
    for (int64_t i = 0; i < elements; ++i) {
      if (to == DType::kF32) {
        std::memcpy(&bytes[i * 4], &values_[i], 4);
        continue;
      }
      const uint16_t rounded = to == DType::kBF16 ? BFloat16(values_[i]).bits
                                                  : Float16(values_[i]).bits;
      std::memcpy(&bytes[i * 2], &rounded, 2);
    }
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<WeightSource> source_;
  std::vector<WeightTensor> tensors_;
  std::vector<char> stored_;
  std::vector<float> values_;
};

}  // namespace

absl::StatusOr<ModelWeights> OpenHuggingFaceFolder(const std::string& folder) {
  ModelWeights result;
  SG_ASSIGN_OR_RETURN(*result.config.mutable_model(),
                      ReadHuggingFaceConfig(folder));
  SG_ASSIGN_OR_RETURN(result.model, MakeModel(result.config.model()));
  SG_ASSIGN_OR_RETURN(result.huggingface_config,
                      ReadWholeFile(absl::StrCat(folder, "/config.json")));
  auto opened = HuggingFaceFolder::Open(folder);
  if (!opened.ok())
    return absl::InvalidArgumentError(opened.status().message());
  SG_ASSIGN_OR_RETURN(const auto matched,
                      MatchParameters(**opened, *result.model));
  result.source = std::make_unique<HuggingFaceWeights>(*std::move(opened),
                                                       matched, *result.model);
  result.folder = folder;
  return result;
}

absl::StatusOr<ModelWeights> OpenCheckpointWeights(const std::string& path) {
  const absl::StatusOr<std::string> folder = ResolveCheckpoint(path);
  if (!folder.ok())
    return absl::InvalidArgumentError(folder.status().message());
  absl::StatusOr<CheckpointManifest> manifest = ReadCheckpointManifest(*folder);
  if (!manifest.ok()) return DamageIsWrongInput(manifest.status());
  ModelWeights result;
  result.config = manifest->config();
  SG_ASSIGN_OR_RETURN(result.model, MakeModel(result.config.model()));
  const auto config = manifest->extra().find(kConfigExtra);
  if (config != manifest->extra().end())
    result.huggingface_config = config->second;
  auto source =
      std::make_unique<CheckpointWeights>(*folder, *std::move(manifest));
  SG_RETURN_IF_ERROR(DamageIsWrongInput(source->Match(*folder, *result.model)));
  result.source = std::move(source);
  // RUN/checkpoints/step_N.
  result.folder = std::filesystem::absolute(*folder)
                      .lexically_normal()
                      .parent_path()
                      .parent_path()
                      .string();
  return result;
}

std::unique_ptr<WeightSource> CastWeights(std::unique_ptr<WeightSource> source,
                                          DType dtype) {
  return std::make_unique<CastSource>(std::move(source), dtype);
}

}  // namespace shardgraph
