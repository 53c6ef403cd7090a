#include "tools/text/tokenizer.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "nlohmann/json.hpp"

namespace shardgraph {
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  void Encode(absl::string_view text,
              std::vector<int32_t>* tokens) const override {
    tokens->reserve(tokens->size() + text.size());
    for (const char c : text) tokens->push_back(static_cast<unsigned char>(c));
  }
  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token >= 0 && token < 256) text.push_back(static_cast<char>(token));
    }
    return text;
  }
  std::string Description() const override {
    return "{\"version\": \"1.0\", \"model\": {\"type\": \"bytes\", "
           "\"vocab_size\": 256}}\n";
  }
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() {
  return std::make_unique<ByteTokenizer>();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& name_or_path) {
  if (name_or_path == "bytes") return MakeByteTokenizer();
  std::string path = name_or_path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    path = absl::StrCat(path, "/", kTokenizerFile);
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no tokenizer \"", name_or_path,
                     "\"; use \"bytes\" or the path of a tokenizer.json (",
                     text.status().message(), ")"));
  }
  const nlohmann::json json = ParseJson(*text);
  const nlohmann::json::json_pointer type("/model/type");
  if (!json.is_object() || !json.contains(type) || !json[type].is_string()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is no description of a tokenizer: it has no model.type"));
  }
  if (json[type] != "bytes") {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": model.type is ", JsonText(json[type]),
                     "; this version knows \"bytes\" only"));
  }
  return MakeByteTokenizer();
}

}  // namespace shardgraph
