#include "fsdp/checkpoint/huggingface.h"

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/checkpoint/parameter_patterns.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "fsdp/train/shard_writer.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

using StoredTensor = HuggingFaceFolder::StoredTensor;

constexpr char kSingle[] = "model.safetensors";
constexpr char kIndex[] = "model.safetensors.index.json";
// Buffers that files carry and no model learns.
constexpr absl::string_view kIgnoredEndings[] = {
    ".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

// File names of the index, sorted, and the file that it gives each tensor.
absl::StatusOr<std::map<std::string, std::string>> ReadIndex(
    const std::string& path) {
  SG_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object() || !json.contains("weight_map") ||
      !json["weight_map"].is_object())
    return Wrong(path, "it has no object \"weight_map\"");
  std::map<std::string, std::string> file_of;
  for (const auto& item : json["weight_map"].items()) {
    if (!item.value().is_string())
      return Wrong(path, absl::StrCat("weight_map \"", item.key(),
                                      "\" is no file name"));
    const std::string file = item.value().get<std::string>();
    if (file.empty() || absl::StrContains(file, "/"))
      return Wrong(path, absl::StrCat("weight_map names the file \"", file,
                                      "\"; it must be in this folder"));
    file_of[item.key()] = file;
  }
  return file_of;
}

std::string WithoutFirstComponent(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

// Names under which a parameter may be stored, the likeliest first.
std::vector<std::string> NamesOf(const Parameter& parameter,
                                 const Model& model) {
  std::vector<std::string> names = {parameter.name};
  for (const auto& [alias, name] : model.aliases()) {
    if (name == parameter.name) names.push_back(alias);
  }
  const size_t full = names.size();
  for (size_t i = 0; i < full; ++i) {
    const std::string name = names[i];
    // "lm_head.weight" has no prefix to lose.
    if (absl::StartsWith(name, "transformer.") ||
        absl::StartsWith(name, "model."))
      names.push_back(WithoutFirstComponent(name));
  }
  return names;
}

bool Ignored(const std::string& name) {
  for (absl::string_view ending : kIgnoredEndings) {
    if (absl::EndsWith(name, ending)) return true;
  }
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HuggingFaceFolder>> HuggingFaceFolder::Open(
    const std::string& folder) {
  std::unique_ptr<HuggingFaceFolder> result(new HuggingFaceFolder());
  result->path_ = folder;
  std::map<std::string, std::string> file_of;  // of tensors; empty: one file
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> single =
      SafetensorsFile::Open(absl::StrCat(folder, "/", kSingle));
  if (single.ok()) {
    result->files_.push_back(*std::move(single));
  } else if (!absl::IsNotFound(single.status())) {
    return single.status();
  } else {
    auto index = ReadIndex(absl::StrCat(folder, "/", kIndex));
    if (absl::IsNotFound(index.status())) {
      return absl::NotFoundError(
          absl::StrCat(folder, " has neither ", kSingle, " nor ", kIndex,
                       "; give a Hugging Face folder with safetensors files"));
    }
    SG_RETURN_IF_ERROR(index.status());
    file_of = *std::move(index);
    std::set<std::string> names;
    for (const auto& [tensor, file] : file_of) names.insert(file);
    for (const std::string& name : names) {
      SG_ASSIGN_OR_RETURN(
          auto file, SafetensorsFile::Open(absl::StrCat(folder, "/", name)));
      result->files_.push_back(std::move(file));
    }
  }
  for (const auto& file : result->files_) {
    for (const SafetensorsEntry& entry : file->entries()) {
      if (!result->tensors_
               .emplace(entry.name, StoredTensor{file.get(), &entry})
               .second)
        return Wrong(file->path(), absl::StrCat("tensor \"", entry.name,
                                                "\" is in another file too"));
    }
  }
  for (const auto& [tensor, file] : file_of) {
    const auto it = result->tensors_.find(tensor);
    if (it == result->tensors_.end() ||
        it->second.file->path() != absl::StrCat(folder, "/", file)) {
      return Wrong(absl::StrCat(folder, "/", kIndex),
                   absl::StrCat("tensor \"", tensor, "\" is not in ", file));
    }
  }
  return result;
}

absl::StatusOr<std::map<const Parameter*, StoredTensor>> MatchParameters(
    const HuggingFaceFolder& folder, const Model& model,
    const std::vector<std::string>& patterns) {
  SG_ASSIGN_OR_RETURN(const std::set<const Parameter*> wanted,
                      MatchingParameters(model, patterns, /*adapters=*/false));
  std::map<const Parameter*, StoredTensor> matched;
  std::set<std::string> known;
  for (const Parameter* parameter : model.parameters()) {
    if (wanted.count(parameter) == 0) continue;
    StoredTensor tensor;
    for (const std::string& name : NamesOf(*parameter, model)) {
      const auto it = folder.tensors().find(name);
      if (it == folder.tensors().end()) continue;
      known.insert(name);
      if (tensor.entry == nullptr) tensor = it->second;
    }
    if (tensor.entry == nullptr) {
      return Wrong(
          folder.path(),
          absl::StrCat("there is no tensor for the parameter ", parameter->name,
                       " [", absl::StrJoin(parameter->shape, ", "),
                       "]; is `model` what config.json says?"));
    }
    if (tensor.entry->shape != parameter->shape) {
      return Wrong(
          tensor.file->path(),
          absl::StrCat("tensor \"", tensor.entry->name, "\" has shape [",
                       absl::StrJoin(tensor.entry->shape, ", "),
                       "], but the model's parameter has [",
                       absl::StrJoin(parameter->shape, ", "),
                       "]; is `model` what config.json says?"));
    }
    if (!tensor.entry->dtype.has_value() || !IsFloating(*tensor.entry->dtype)) {
      return Wrong(tensor.file->path(),
                   absl::StrCat("tensor \"", tensor.entry->name,
                                "\" has dtype ", tensor.entry->dtype_name,
                                "; F32, BF16, F16 and F64 can be read"));
    }
    matched[parameter] = tensor;
  }
  if (!patterns.empty()) return matched;
  for (const auto& [name, tensor] : folder.tensors()) {
    if (known.count(name) > 0 || Ignored(name)) continue;
    return Wrong(tensor.file->path(),
                 absl::StrCat("the model has no parameter for tensor \"", name,
                              "\" [", absl::StrJoin(tensor.entry->shape, ", "),
                              "]; is `model` what config.json says?"));
  }
  return matched;
}

absl::Status LoadHuggingFaceWeights(const std::string& folder,
                                    const TrainingPlan& plan, int shard,
                                    Executor& executor,
                                    const std::vector<std::string>& patterns) {
  SG_ASSIGN_OR_RETURN(const auto opened, HuggingFaceFolder::Open(folder));
  SG_ASSIGN_OR_RETURN(const auto matched,
                      MatchParameters(*opened, *plan.model, patterns));
  return ShardWriter(plan, shard, executor)
      .Fill(
          ShardKind::kMaster,
          [&](const Parameter& parameter, int64_t begin,
              absl::Span<float> values) {
            const StoredTensor& tensor = matched.at(&parameter);
            ReadAsFloat(*tensor.entry->dtype, tensor.file->Data(*tensor.entry),
                        begin, values);
            const int64_t size = SizeOf(*tensor.entry->dtype);
            tensor.file->Release(
                *tensor.entry, begin * size,
                (begin + static_cast<int64_t>(values.size())) * size);
            return absl::OkStatus();
          },
          [&](const Parameter& parameter) {
            return matched.count(&parameter) > 0;
          });
}

}  // namespace shardgraph
