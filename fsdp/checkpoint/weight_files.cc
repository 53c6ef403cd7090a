#include "fsdp/checkpoint/weight_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/checkpoint/manifest.h"
#include "fsdp/checkpoint/safetensors.h"
#include "fsdp/files/crc32c.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

using WeightTensor = SafetensorsWriter::Tensor;

// Of a checkpoint's files.
constexpr int64_t kMaxFileBytes = int64_t{4} << 30;

int64_t BytesOf(const WeightTensor& tensor) {
  return NumElements(tensor.shape) * SizeOf(tensor.dtype);
}

// The numbers of the tensors of each file, in order.
std::vector<std::vector<size_t>> SplitIntoFiles(
    absl::Span<const WeightTensor> tensors, int64_t max_file_bytes) {
  std::vector<std::vector<size_t>> files;
  std::vector<size_t> file;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = BytesOf(tensors[i]);
    if (more > max_file_bytes) {
      files.push_back({i});
      continue;
    }
    if (bytes + more > max_file_bytes) {
      files.push_back(std::move(file));
      file.clear();
      bytes = 0;
    }
    file.push_back(i);
    bytes += more;
  }
  if (!file.empty()) files.push_back(std::move(file));
  return files;
}

// Writes one file of some of the tensors; what stands before its data.
// `wrote(tensor, bytes)` sees each tensor's data as it goes by.
template <typename WroteFunction>
absl::StatusOr<std::string> WriteFile(
    WeightSource& source, const std::vector<size_t>& numbers,
    const std::string& path, std::map<std::string, std::string> metadata,
    const WroteFunction& wrote) {
  std::vector<WeightTensor> tensors;
  std::map<std::string, size_t> number_of;
  for (const size_t i : numbers) {
    tensors.push_back(source.tensors()[i]);
    number_of[tensors.back().name] = i;
  }
  SG_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(path, tensors, std::move(metadata)));
  for (const SafetensorsEntry& entry : writer->entries()) {
    const size_t number = number_of.at(entry.name);
    SG_RETURN_IF_ERROR(ReadWeight(source, number, [&](absl::string_view bytes) {
      wrote(number, bytes);
      return writer->Append(bytes);
    }));
  }
  SG_RETURN_IF_ERROR(writer->Close());
  return writer->header();
}

absl::Status FileError(absl::string_view what, const std::string& path,
                       const std::error_code& error) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " ", path, ": ", error.message()));
}

}  // namespace

absl::Status ReadWeight(
    WeightSource& source, size_t tensor,
    absl::FunctionRef<absl::Status(absl::string_view bytes)> take) {
  const WeightTensor& described = source.tensors()[tensor];
  const int64_t size = SizeOf(described.dtype),
                elements = NumElements(described.shape);
  const int64_t chunk = kWeightChunkBytes / size;
  std::vector<char> bytes(std::min(chunk, elements) * size);
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    const absl::Span<char> part = absl::MakeSpan(bytes).subspan(
        0, std::min(chunk, elements - begin) * size);
    SG_RETURN_IF_ERROR(source.Read(tensor, begin, part));
    SG_RETURN_IF_ERROR(take(absl::string_view(part.data(), part.size())));
  }
  return absl::OkStatus();
}

absl::Status WriteHuggingFaceWeights(WeightSource& source,
                                     const std::string& folder,
                                     int64_t max_file_bytes) {
  const absl::Span<const WeightTensor> tensors = source.tensors();
  const std::vector<std::vector<size_t>> files =
      SplitIntoFiles(tensors, max_file_bytes);
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t parameters = 0, bytes = 0;
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string name =
        files.size() == 1 ? "model.safetensors"
                          : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                            f + 1, files.size());
    SG_RETURN_IF_ERROR(
        WriteFile(source, files[f], absl::StrCat(folder, "/", name),
                  {{"format", "pt"}}, [](size_t, absl::string_view) {})
            .status());
    for (const size_t i : files[f]) {
      weight_map[tensors[i].name] = name;
      parameters += NumElements(tensors[i].shape);
      bytes += BytesOf(tensors[i]);
    }
  }
  if (files.size() == 1) return absl::OkStatus();
  const nlohmann::json index = {
      {"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
      {"weight_map", std::move(weight_map)}};
  return WriteDurableFile(absl::StrCat(folder, "/model.safetensors.index.json"),
                          JsonText(index, 2) + "\n");
}

absl::Status WriteWeightsCheckpoint(
    WeightSource& source, const TrainConfig& config,
    const std::map<std::string, std::string>& extra,
    const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", CheckpointName(0));
  const std::string temporary = absl::StrCat(path, ".tmp");
  std::error_code error;
  fs::remove_all(temporary, error);
  fs::create_directories(temporary, error);
  if (error) return FileError("make the folder", temporary, error);

  CheckpointManifest manifest;
  manifest.set_version(kManifestVersion);
  manifest.set_world_size(1);
  *manifest.mutable_config() = config;
  manifest.mutable_extra()->insert(extra.begin(), extra.end());
  manifest.set_chunk_bytes(kWeightChunkBytes);
  const StepState fresh;
  CheckpointState* state = manifest.mutable_state();
  for (int g = 0; g < StepState::kMaxGroups; ++g) {
    state->add_beta1_power(fresh.beta1_power[g]);
    state->add_beta2_power(fresh.beta2_power[g]);
  }
  state->set_loss_scale(fresh.loss_scale);
  for (const WeightTensor& tensor : source.tensors()) {
    CheckpointTensor* saved = manifest.add_tensors();
    saved->set_name(tensor.name);
    saved->set_dtype(std::string(DTypeName(tensor.dtype)));
    CheckpointPiece* piece = saved->add_pieces();
    for (const int64_t dim : tensor.shape) {
      saved->add_shape(dim);
      piece->add_offset(0);
      piece->add_size(dim);
    }
  }

  const std::vector<std::vector<size_t>> files =
      SplitIntoFiles(source.tensors(), kMaxFileBytes);
  for (size_t f = 0; f < files.size(); ++f) {
    const std::string name = absl::StrFormat(
        "shard-00000-model-%05d-of-%05d.safetensors", f + 1, files.size());
    const std::string file = absl::StrCat(temporary, "/", name);
    nlohmann::json offsets = nlohmann::json::object();
    for (const size_t i : files[f]) {
      const WeightTensor& tensor = source.tensors()[i];
      offsets[tensor.name]["saved_offsets"] =
          std::vector<int64_t>(tensor.shape.size(), 0);
      manifest.mutable_tensors(i)->mutable_pieces(0)->set_file(f);
    }
    SG_ASSIGN_OR_RETURN(
        const std::string header,
        WriteFile(
            source, files[f], file,
            {{"DCP_SHARDING_INFO", JsonText(offsets)},
             {"DCP_VERSION", "1.0"},
             {"format", "pt"}},
            [&](size_t number, absl::string_view bytes) {
              manifest.mutable_tensors(number)->mutable_pieces(0)->add_crc32c(
                  Crc32c(bytes));
            }));
    CheckpointFile* listed = manifest.add_files();
    listed->set_name(name);
    listed->set_bytes(static_cast<int64_t>(fs::file_size(file, error)));
    listed->set_header_bytes(static_cast<int64_t>(header.size()));
    listed->set_header_crc32c(Crc32c(header));
    if (error) return FileError("read", file, error);
  }
  SG_RETURN_IF_ERROR(CheckPieces(manifest));
  SG_RETURN_IF_ERROR(
      WriteManifest(absl::StrCat(temporary, "/", kManifestName), manifest));
  SG_RETURN_IF_ERROR(SyncFolder(temporary));
  fs::rename(temporary, path, error);
  if (error) return FileError("rename", temporary, error);
  return SyncFolder(folder);
}

}  // namespace shardgraph
