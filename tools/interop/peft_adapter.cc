#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "graph/model/defaults.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/interop/adapters.h"

namespace shardgraph {
namespace {

using Json = nlohmann::json;
using WeightTensor = SafetensorsWriter::Tensor;

constexpr char kConfigFile[] = "adapter_config.json",
               kWeightsFile[] = "adapter_model.safetensors";
constexpr absl::string_view kPrefix = "base_model.model.";

// Keys that do not change what the adapter computes; which modules have one,
// the tensors say.
constexpr absl::string_view kIgnored[] = {
    "auto_mapping",      "base_model_name_or_path",
    "exclude_modules",   "fan_in_fan_out",
    "inference_mode",    "init_lora_weights",
    "layers_pattern",    "layers_to_transform",
    "megatron_core",     "peft_version",
    "qalora_group_size", "revision",
    "target_modules",    "task_type"};

absl::Status Wrong(const std::string& path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<double> Number(const std::string& path, const Json& json,
                              const char* key, double least) {
  const auto value = json.find(key);
  if (value == json.end()) return Wrong(path, absl::StrCat(key, " is missing"));
  if (value->is_number() && value->get<double>() >= least &&
      std::isfinite(value->get<double>()))
    return value->get<double>();
  return Wrong(path,
               absl::StrCat(key, " is ", JsonText(*value),
                            "; it must be a number of ", least, " or more"));
}

// Rank, alpha and dropout.
absl::StatusOr<LoraSpec> ReadConfig(const std::string& path) {
  SG_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const Json json = ParseJson(text);
  if (!json.is_object()) return Wrong(path, "it is no JSON object");
  const Json type = json.value("peft_type", Json());
  if (type != "LORA")
    return Wrong(path, absl::StrCat("peft_type is ", JsonText(type),
                                    "; \"LORA\" can be read"));
  LoraSpec spec;
  SG_ASSIGN_OR_RETURN(const double rank, Number(path, json, "r", 1));
  if (rank != std::floor(rank) || rank > 1e6)
    return Wrong(path, absl::StrCat("r is ", rank, "; it must be an integer"));
  spec.set_rank(static_cast<int64_t>(rank));
  SG_ASSIGN_OR_RETURN(const double alpha, Number(path, json, "lora_alpha", 0));
  spec.set_alpha(alpha);
  if (json.contains("lora_dropout")) {
    SG_ASSIGN_OR_RETURN(const double dropout,
                        Number(path, json, "lora_dropout", 0));
    spec.set_dropout(dropout);
  }
  std::set<absl::string_view> known(std::begin(kIgnored), std::end(kIgnored));
  known.insert({"peft_type", "r", "lora_alpha", "lora_dropout"});
  for (const auto& item : json.items()) {
    const Json& value = item.value();
    // Off, as far as one can say it.
    if (known.count(item.key()) > 0 || value.is_null() || value == false ||
        (value.is_structured() && value.empty()) ||
        (item.key() == "bias" && value == "none"))
      continue;
    return Wrong(path,
                 absl::StrCat(item.key(), " is ", JsonText(value).substr(0, 80),
                              "; this is not understood"));
  }
  return spec;
}

// The tensors of a model and of its adapter.
class WithAdapter : public WeightSource {
 public:
  WithAdapter(std::unique_ptr<WeightSource> base,
              std::unique_ptr<SafetensorsFile> adapter)
      : base_(std::move(base)), adapter_(std::move(adapter)) {}

  // `stored`: the adapter's tensors by the names of their parameters.
  absl::Status Match(
      const Model& model,
      const std::map<std::string, const SafetensorsEntry*>& stored) {
    std::map<std::string, size_t> of_base;
    size_t used = 0;
    for (size_t i = 0; i < base_->tensors().size(); ++i)
      of_base[base_->tensors()[i].name] = i;
    for (const Parameter* parameter : model.parameters()) {
      if (!parameter->adapter) {
        const size_t i = of_base.at(parameter->name);
        places_.push_back({i, nullptr});
        tensors_.push_back(base_->tensors()[i]);
        continue;
      }
      const auto entry = stored.find(parameter->name);
      if (entry == stored.end() || entry->second->shape != parameter->shape) {
        return Wrong(
            adapter_->path(),
            absl::StrCat("there is no tensor \"", kPrefix, parameter->name,
                         "\" [", absl::StrJoin(parameter->shape, ", "), "]"));
      }
      places_.push_back({0, entry->second});
      tensors_.push_back(
          {parameter->name, *entry->second->dtype, parameter->shape});
      ++used;
    }
    // Each pattern has matched the module that it names.
    SG_CHECK_EQ(used, stored.size());
    return absl::OkStatus();
  }

  absl::Span<const WeightTensor> tensors() const override { return tensors_; }
  absl::Status Read(size_t tensor, int64_t begin,
                    absl::Span<char> bytes) override {
    const Place& place = places_[tensor];
    if (place.entry == nullptr) return base_->Read(place.tensor, begin, bytes);
    std::memcpy(bytes.data(),
                adapter_->Data(*place.entry).data() +
                    begin * SizeOf(tensors_[tensor].dtype),
                bytes.size());
    return absl::OkStatus();
  }

 private:
  struct Place {
    size_t tensor = 0;  // of base_, where there is no entry
    const SafetensorsEntry* entry = nullptr;
  };

  std::unique_ptr<WeightSource> base_;
  std::unique_ptr<SafetensorsFile> adapter_;
  std::vector<WeightTensor> tensors_;
  std::vector<Place> places_;
};

}  // namespace

absl::Status AddPeftAdapter(const std::string& folder, ModelWeights* weights) {
  ModelSpec* spec = weights->config.mutable_model();
  if (weights->model->has_adapters()) {
    return Wrong(
        folder,
        "the model has adapters already (model.lora); merge them first");
  }
  SG_ASSIGN_OR_RETURN(*spec->mutable_lora(),
                      ReadConfig(absl::StrCat(folder, "/", kConfigFile)));
  const std::string path = absl::StrCat(folder, "/", kWeightsFile);
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
      SafetensorsFile::Open(path);
  if (!file.ok()) return absl::InvalidArgumentError(file.status().message());
  std::map<std::string, const SafetensorsEntry*> stored;
  std::set<std::string> modules;
  for (const SafetensorsEntry& entry : (*file)->entries()) {
    absl::string_view name = entry.name;
    const bool prefix = absl::ConsumePrefix(&name, kPrefix);
    absl::string_view module = name;
    if (!prefix || (!absl::ConsumeSuffix(&module, kAdapterA) &&
                    !absl::ConsumeSuffix(&module, kAdapterB))) {
      return Wrong(path, absl::StrCat("tensor \"", entry.name,
                                      "\" is not understood; lora_A.weight and "
                                      "lora_B.weight of modules are"));
    }
    if (!entry.dtype.has_value() || !IsFloating(*entry.dtype)) {
      return Wrong(path, absl::StrCat("tensor \"", entry.name, "\" has dtype ",
                                      entry.dtype_name));
    }
    stored[std::string(name)] = &entry;
    modules.insert(std::string(module));
  }
  if (modules.empty()) return Wrong(path, "it holds no tensor");
  for (const std::string& module : modules)
    spec->mutable_lora()->add_modules(
        absl::StrReplaceAll(module, {{".", "[.]"}}));
  absl::StatusOr<std::unique_ptr<Model>> model = MakeModel(*spec);
  if (!model.ok()) return Wrong(path, model.status().message());
  auto source = std::make_unique<WithAdapter>(std::move(weights->source),
                                              *std::move(file));
  SG_RETURN_IF_ERROR(source->Match(**model, stored));
  weights->source = std::move(source);
  weights->model = *std::move(model);
  return absl::OkStatus();
}

absl::Status WritePeftAdapter(const ModelWeights& weights,
                              const std::string& folder) {
  SG_CHECK(weights.model->has_adapters());
  std::vector<WeightTensor> tensors;
  std::map<std::string, size_t> number_of;
  std::set<std::string> modules;
  bool input_major = false;
  for (size_t i = 0; i < weights.source->tensors().size(); ++i) {
    WeightTensor tensor = weights.source->tensors()[i];
    absl::string_view module = tensor.name;
    if (!absl::ConsumeSuffix(&module, kAdapterA) &&
        !absl::ConsumeSuffix(&module, kAdapterB))
      continue;
    modules.insert(std::string(module));
    input_major = input_major || IsInputMajor(weights.model->root(), module);
    tensor.name = absl::StrCat(kPrefix, tensor.name);
    number_of[tensor.name] = i;
    tensors.push_back(std::move(tensor));
  }
  SG_ASSIGN_OR_RETURN(
      const auto writer,
      SafetensorsWriter::Create(absl::StrCat(folder, "/", kWeightsFile),
                                tensors, {{"format", "pt"}}));
  for (const SafetensorsEntry& entry : writer->entries()) {
    SG_RETURN_IF_ERROR(ReadWeight(
        *weights.source, number_of.at(entry.name),
        [&](absl::string_view bytes) { return writer->Append(bytes); }));
  }
  SG_RETURN_IF_ERROR(writer->Close());

  const LoraSpec& spec = weights.config.model().lora();
  const double alpha = LoraScale(spec) * static_cast<double>(LoraRank(spec));
  Json config = {{"peft_type", "LORA"},
                 {"task_type", "CAUSAL_LM"},
                 {"base_model_name_or_path", nullptr},
                 {"r", LoraRank(spec)},
                 {"lora_dropout", spec.dropout()},
                 {"target_modules", modules},
                 {"fan_in_fan_out", input_major},
                 {"bias", "none"},
                 {"inference_mode", true}};
  if (alpha == std::floor(alpha)) {
    config["lora_alpha"] = static_cast<int64_t>(alpha);
  } else {
    config["lora_alpha"] = alpha;
  }
  // Last: without it the folder is none.
  return WriteDurableFile(absl::StrCat(folder, "/", kConfigFile),
                          JsonText(config, 2) + "\n");
}

}  // namespace shardgraph
