#include "tools/text/tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/files/durable_file.h"
#include "tools/text/sentencepiece_model.h"
#include "tools/text/tokenizer_files.h"
#include "tools/text/tokenizer_json.h"
#include "tools/text/unicode.h"

namespace shardgraph {
namespace {

constexpr char kSpace[] = "\u2581";  // SentencePiece's

class SentencePieceTokenizer : public Tokenizer {
 public:
  SentencePieceTokenizer(std::unique_ptr<SentencePieceModel> model,
                         std::string bytes)
      : model_(std::move(model)), bytes_(std::move(bytes)) {}

  int64_t vocab_size() const override { return model_->size(); }
  void Encode(absl::string_view text,
              std::vector<int32_t>* tokens) const override {
    model_->Encode(WellFormedUtf8(text), tokens);
  }
  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      if (token < 0 || token >= model_->size()) continue;
      absl::StrAppend(&text, absl::StrReplaceAll(model_->PieceText(token),
                                                 {{kSpace, " "}}));
    }
    return text;
  }
  bool MayCut(absl::string_view before,
              absl::string_view after) const override {
    return before.back() == '\n' && !absl::ascii_isspace(after[0]);
  }
  std::vector<int32_t> Prefix() const override {
    if (model_->begin_of_text() < 0) return {};
    return {model_->begin_of_text()};
  }
  std::optional<int32_t> EndOfText() const override {
    if (model_->end_of_text() < 0) return std::nullopt;
    return model_->end_of_text();
  }
  std::string FileName() const override { return "tokenizer.model"; }
  std::string Description() const override { return bytes_; }

 private:
  std::unique_ptr<SentencePieceModel> model_;
  std::string bytes_;
};

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(*text);
  if (!absl::StartsWith(start, "{")) {  // no JSON
    std::string error;
    auto model = SentencePieceModel::Parse(*text, &error);
    if (model == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          " is neither a tokenizer.json nor a SentencePiece model: ", error));
    }
    return std::make_unique<SentencePieceTokenizer>(std::move(model),
                                                    *std::move(text));
  }
  auto tokenizer = ParseTokenizerJson(*text);
  if (tokenizer.ok()) return tokenizer;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", tokenizer.status().message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& name_or_path) {
  if (name_or_path == "bytes") return MakeByteTokenizer();
  std::error_code error;
  if (!std::filesystem::is_directory(name_or_path, error)) {
    if (std::filesystem::exists(name_or_path, error))
      return LoadFile(name_or_path);
  } else if (const std::string file = FindTokenizerFile(name_or_path);
             !file.empty()) {
    auto tokenizer = LoadFile(file);
    const std::string model =
        absl::StrCat(name_or_path, "/", kTokenizerFiles[1]);
    // Hugging Face's form of a SentencePiece model is not understood; the
    // model itself, beside it, is.
    if (tokenizer.ok() || !std::filesystem::exists(model, error))
      return tokenizer;
    return LoadFile(model);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no tokenizer \"", name_or_path,
      "\"; use \"bytes\", the path of a tokenizer.json or of a SentencePiece "
      "model, or a folder that holds one"));
}

}  // namespace shardgraph
