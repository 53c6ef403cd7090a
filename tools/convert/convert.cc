#include "tools/convert/convert.h"

#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/weight_files.h"
#include "fsdp/config/train_config.h"
#include "fsdp/files/durable_file.h"
#include "kernels/status_macros.h"
#include "tools/interop/adapters.h"
#include "tools/interop/huggingface_config.h"
#include "tools/interop/model_weights.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

namespace shardgraph {
namespace {

namespace fs = std::filesystem;

constexpr char kUsage[] =
    "convert: takes weights from one format to another.\n"
    "  convert --from=HUGGINGFACE_FOLDER_OR_LLMC_FILE --to=RUN_DIR\n"
    "  convert --from=RUN_OR_CHECKPOINT --to=HUGGINGFACE_FOLDER [flags]\n"
    "  convert --from=RUN_OR_CHECKPOINT --to=ADAPTER_FOLDER --format=adapter\n"
    "  convert --from=HUGGINGFACE_FOLDER --adapter=ADAPTER_FOLDER --to=...";

constexpr char kHuggingFace[] = "huggingface", kCheckpoint[] = "checkpoint",
               kAdapter[] = "adapter";

// What else belongs to a model and is copied as it is.
constexpr const char* kCompanions[] = {
    "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json",
    "added_tokens.json",  "vocab.json",
    "merges.txt",         "generation_config.json",
    "chat_template.jinja"};

absl::StatusOr<ModelWeights> Open(const std::string& from, bool* checkpoint) {
  std::error_code error;
  *checkpoint = false;
  if (!fs::exists(from, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--from is ", from,
                     ", which is not there; give a Hugging Face folder, "
                     "a checkpoint, a run directory or a model file of llm.c"));
  }
  if (!fs::is_directory(from, error)) return OpenLlmcModel(from);
  if (fs::exists(fs::path(from) / "config.json", error))
    return OpenHuggingFaceFolder(from);
  *checkpoint = true;
  return OpenCheckpointWeights(from);
}

absl::Status CheckNames(const ConvertOptions& options) {
  const std::string &dtype = options.dtype, &format = options.format;
  if (!dtype.empty() && dtype != "F32" && dtype != "BF16" && dtype != "F16") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--dtype is \"", dtype, "\"; it must be F32, BF16 or F16"));
  }
  if (!format.empty() && format != kHuggingFace && format != kCheckpoint &&
      format != kAdapter) {
    return absl::InvalidArgumentError(
        absl::StrCat("--format is \"", format, "\"; it must be ", kHuggingFace,
                     ", ", kAdapter, " or ", kCheckpoint));
  }
  return absl::OkStatus();
}

// Makes the folder that --to names.
absl::Status MakeEmptyFolder(const std::string& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (!error && !fs::is_empty(to, error) && !error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--to is ", to,
                     ", which holds files already; name a "
                     "folder that is not there yet"));
  }
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--to is ", to, ", but: ", error.message(), "; name another folder"));
  }
  return absl::OkStatus();
}

absl::Status CopyCompanions(const std::string& from, const std::string& to) {
  if (from.empty()) return absl::OkStatus();
  for (const char* name : kCompanions) {
    std::error_code error;
    const fs::path file = fs::path(from) / name;
    if (!fs::is_regular_file(file, error)) continue;
    SG_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(file.string()));
    SG_RETURN_IF_ERROR(WriteDurableFile((fs::path(to) / name).string(), text));
  }
  return absl::OkStatus();
}

// The dtype that most of the weights have.
DType MainDType(const WeightSource& source) {
  std::map<DType, int64_t> elements;
  for (const auto& tensor : source.tensors())
    elements[tensor.dtype] += NumElements(tensor.shape);
  DType main = DType::kF32;
  int64_t most = 0;
  for (const auto& [dtype, count] : elements) {
    if (count > most) most = count, main = dtype;
  }
  return main;
}

}  // namespace

absl::StatusOr<ConvertResult> Convert(const ConvertOptions& options) {
  SG_RETURN_IF_ERROR(CheckNames(options));
  bool checkpoint = false;
  SG_ASSIGN_OR_RETURN(ModelWeights weights, Open(options.from, &checkpoint));
  if (!options.adapter.empty())
    SG_RETURN_IF_ERROR(AddPeftAdapter(options.adapter, &weights));
  std::string format = options.format;
  if (format.empty()) format = checkpoint ? kHuggingFace : kCheckpoint;
  if (format == kHuggingFace) SG_RETURN_IF_ERROR(MergeAdapters(&weights));
  DType dtype;
  if (ParseDType(options.dtype, &dtype))
    weights.source = CastWeights(std::move(weights.source), dtype);
  ConvertResult result;
  for (const auto& tensor : weights.source->tensors()) {
    result.parameters += NumElements(tensor.shape);
    result.bytes += NumElements(tensor.shape) * SizeOf(tensor.dtype);
  }

  if (format == kAdapter) {
    if (!weights.model->has_adapters()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--format is adapter, but the model of ", options.from,
                       " has none (model.lora); leave --format out"));
    }
    SG_RETURN_IF_ERROR(MakeEmptyFolder(options.to));
    SG_RETURN_IF_ERROR(
        DamageIsWrongInput(WritePeftAdapter(weights, options.to)));
    result.written = options.to;
    return result;
  }
  if (format == kHuggingFace) {
    // First, to say what cannot be written before anything is.
    SG_ASSIGN_OR_RETURN(const std::string config,
                        HuggingFaceConfigText(weights.config.model(),
                                              MainDType(*weights.source),
                                              weights.huggingface_config));
    SG_RETURN_IF_ERROR(MakeEmptyFolder(options.to));
    SG_RETURN_IF_ERROR(DamageIsWrongInput(WriteHuggingFaceWeights(
        *weights.source, options.to, options.max_file_bytes)));
    SG_RETURN_IF_ERROR(CopyCompanions(weights.folder, options.to));
    // Last: without it the folder is none.
    SG_RETURN_IF_ERROR(
        WriteDurableFile(absl::StrCat(options.to, "/config.json"), config));
    result.written = options.to;
    return result;
  }
  SG_RETURN_IF_ERROR(MakeEmptyFolder(options.to));
  const std::string checkpoints = absl::StrCat(options.to, "/checkpoints");
  SG_RETURN_IF_ERROR(MakeEmptyFolder(checkpoints));
  SG_RETURN_IF_ERROR(CopyCompanions(weights.folder, options.to));
  ResolveTrainConfig(weights.model->max_positions(), 1, &weights.config);
  std::map<std::string, std::string> extra;
  if (!weights.huggingface_config.empty())
    extra[kConfigExtra] = weights.huggingface_config;
  SG_RETURN_IF_ERROR(DamageIsWrongInput(WriteWeightsCheckpoint(
      *weights.source, weights.config, extra, checkpoints)));
  result.written = options.to;
  return result;
}

absl::StatusOr<ConvertOptions> ParseConvertFlags(
    const std::vector<std::string>& arguments) {
  ConvertOptions options;
  std::vector<std::string> rest;
  SG_RETURN_IF_ERROR(ParseFlags(
      kUsage, arguments,
      {{"from", &options.from,
        "a Hugging Face folder, a checkpoint, a run, or a model of llm.c"},
       {"to", &options.to, "the folder to write"},
       {"dtype", &options.dtype, "F32, BF16 or F16; as stored"},
       {"format", &options.format,
        "huggingface, adapter or checkpoint; what --from is not"},
       {"adapter", &options.adapter,
        "a folder of PEFT whose adapter the model gets; none"},
       {"max_file_bytes", &options.max_file_bytes,
        "of a Hugging Face file's data; 5000000000"}},
      &rest));
  if (!rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("unexpected argument \"", rest[0],
                     "\"; give paths with --from and --to"));
  }
  for (const auto& [flag, value] :
       {std::pair("from", options.from), std::pair("to", options.to)}) {
    if (value.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, " is missing; see convert --help"));
    }
  }
  if (options.max_file_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("--max_file_bytes is ",
                                                   options.max_file_bytes,
                                                   "; it must be 1 or more"));
  }
  options.from = UserPath(options.from);
  options.to = UserPath(options.to);
  if (!options.adapter.empty()) options.adapter = UserPath(options.adapter);
  return options;
}

}  // namespace shardgraph
