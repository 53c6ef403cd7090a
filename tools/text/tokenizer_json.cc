#include "tools/text/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "fsdp/files/json.h"
#include "kernels/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/added_tokens.h"
#include "tools/text/bpe.h"
#include "tools/text/byte_level.h"
#include "tools/text/unicode.h"

namespace shardgraph {
namespace {

using Json = nlohmann::json;

// ByteLevel's own.
constexpr char kGpt2Pattern[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// What ends a document is named like this, the first that there is.
constexpr const char* kEndOfText[] = {"<|endoftext|>", "<|end_of_text|>",
                                      "</s>", "<eos>"};

absl::Status Refuse(absl::string_view path, const Json& value,
                    absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is ", JsonText(value).substr(0, 80), "; ", allowed));
}

// An object whose keys are all understood.
absl::Status CheckKeys(absl::string_view path, const Json& object,
                       std::initializer_list<absl::string_view> known) {
  if (!object.is_object()) return Refuse(path, object, "it must be an object");
  for (const auto& item : object.items()) {
    if (std::find(known.begin(), known.end(), item.key()) == known.end())
      return Refuse(absl::StrCat(path, ".", item.key()), item.value(),
                    "this key is not understood");
  }
  return absl::OkStatus();
}

// Absent, null or one of the values.
absl::Status CheckOneOf(absl::string_view path, const Json& object,
                        const char* key, std::initializer_list<Json> allowed) {
  if (!object.contains(key) || object[key].is_null()) return absl::OkStatus();
  for (const Json& value : allowed) {
    if (object[key] == value) return absl::OkStatus();
  }
  return Refuse(
      absl::StrCat(path, ".", key), object[key],
      absl::StrCat("it must be null or ",
                   JsonText(allowed.size() == 0 ? Json() : *allowed.begin())));
}

std::string TypeOf(const Json& object) {
  if (!object.is_object() || !object.contains("type") ||
      !object["type"].is_string())
    return "";
  return object["type"].get<std::string>();
}

bool BoolOr(const Json& object, const char* key, bool otherwise) {
  return object.contains(key) && object[key].is_boolean()
             ? object[key].get<bool>()
             : otherwise;
}

bool IsToken(const Json& value) {
  return value.is_number_unsigned() &&
         value.get<uint64_t>() < std::numeric_limits<int32_t>::max();
}

// The parts of {"type": "Sequence", KEY: [...]}, of anything else itself; none
// of null.
absl::StatusOr<std::vector<Json>> PartsOf(absl::string_view path,
                                          const Json& value, const char* key) {
  if (value.is_null()) return std::vector<Json>();
  if (TypeOf(value) != "Sequence") return std::vector<Json>{value};
  SG_RETURN_IF_ERROR(CheckKeys(path, value, {"type", key}));
  if (!value.contains(key) || !value[key].is_array())
    return Refuse(path, value, absl::StrCat("it has no list \"", key, "\""));
  return std::vector<Json>(value[key].begin(), value[key].end());
}

const Json& PartOr(const Json& json, const char* key, const Json& otherwise) {
  return json.contains(key) ? json[key] : otherwise;
}

class JsonTokenizer : public Tokenizer {
 public:
  absl::Status Parse(absl::string_view text, const Json& json) {
    text_ = std::string(text);
    const Json null;
    SG_RETURN_IF_ERROR(CheckKeys(
        "tokenizer", json,
        {"version", "truncation", "padding", "added_tokens", "normalizer",
         "pre_tokenizer", "post_processor", "decoder", "model"}));
    SG_RETURN_IF_ERROR(CheckOneOf("tokenizer", json, "truncation", {}));
    SG_RETURN_IF_ERROR(CheckOneOf("tokenizer", json, "padding", {}));
    SG_RETURN_IF_ERROR(ParseModel(PartOr(json, "model", null)));
    SG_RETURN_IF_ERROR(ParseNormalizer(PartOr(json, "normalizer", null)));
    SG_RETURN_IF_ERROR(ParseAddedTokens(PartOr(json, "added_tokens", null)));
    SG_RETURN_IF_ERROR(ParsePreTokenizer(PartOr(json, "pre_tokenizer", null)));
    SG_RETURN_IF_ERROR(
        ParsePostProcessor(PartOr(json, "post_processor", null)));
    const Json& decoder = PartOr(json, "decoder", null);
    if (TypeOf(decoder) != "ByteLevel")
      return Refuse("decoder", decoder, "ByteLevel is understood");
    for (const char* name : kEndOfText) {
      const auto token = added_.find(name);
      if (token != added_.end() && !end_of_text_.has_value())
        end_of_text_ = token->second;
    }
    return absl::OkStatus();
  }

  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<int32_t> EndOfText() const override { return end_of_text_; }
  std::vector<int32_t> Prefix() const override { return prefix_; }
  std::string Description() const override { return text_; }

  bool MayCut(absl::string_view before,
              absl::string_view after) const override {
    return before.back() == '\n' && !absl::ascii_isspace(after[0]);
  }

  void Encode(absl::string_view text,
              std::vector<int32_t>* tokens) const override {
    const auto take_token = [&](int32_t token) { tokens->push_back(token); };
    raw_.Cut(
        WellFormedUtf8(text),
        [&](absl::string_view part) {
          normalized_.Cut(
              nfc_ ? Nfc(part) : std::string(part),
              [&](absl::string_view piece) { Apply(0, piece, tokens); },
              take_token);
        },
        take_token);
  }

  std::string Decode(absl::Span<const int32_t> tokens) const override {
    std::string text;
    for (const int32_t token : tokens) {
      const auto bytes = bytes_of_.find(token);
      if (bytes != bytes_of_.end()) text += bytes->second;
    }
    return text;
  }

 private:
  // A part of the pre-tokenizer.
  struct Step {
    bool add_prefix_space = false;
    bool digits = false;                   // cut at numbers
    bool each_digit = false;               // and between their digits
    std::unique_ptr<RegexSplitter> regex;  // may be null
  };

  absl::Status AddToken(const std::string& piece, const Json& id) {
    if (!IsToken(id)) {
      return Refuse(absl::StrCat("the token of \"", piece, "\""), id,
                    "it must be an integer from 0 to 2^31 - 2");
    }
    const int32_t token = id.get<int32_t>();
    vocab_size_ = std::max<int64_t>(vocab_size_, int64_t{token} + 1);
    if (bytes_of_.emplace(token, PieceBytes(piece)).second)
      return absl::OkStatus();
    return Refuse(absl::StrCat("the token of \"", piece, "\""), id,
                  "another piece has it too");
  }

  absl::Status ParseModel(const Json& model) {
    SG_RETURN_IF_ERROR(
        CheckKeys("model", model,
                  {"type", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback",
                   "ignore_merges", "vocab", "merges"}));
    SG_RETURN_IF_ERROR(CheckOneOf("model", model, "type", {"BPE"}));
    SG_RETURN_IF_ERROR(CheckOneOf("model", model, "dropout", {0.0}));
    SG_RETURN_IF_ERROR(CheckOneOf("model", model, "byte_fallback", {false}));
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      SG_RETURN_IF_ERROR(CheckOneOf("model", model, key, {""}));
    if (!model.contains("vocab") || !model["vocab"].is_object())
      return absl::InvalidArgumentError("model.vocab is no object");
    if (!model.contains("merges") || !model["merges"].is_array())
      return absl::InvalidArgumentError("model.merges is no list");
    absl::flat_hash_map<std::string, int32_t> vocab;
    vocab.reserve(model["vocab"].size());
    bytes_of_.reserve(model["vocab"].size());
    for (const auto& item : model["vocab"].items()) {
      SG_RETURN_IF_ERROR(AddToken(item.key(), item.value()));
      vocab[item.key()] = item.value().get<int32_t>();
    }
    for (int byte = 0; byte < 256; ++byte) {
      const auto token = vocab.find(ByteCharacter(byte));
      if (token == vocab.end()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "model.vocab has no token for the byte 0x%02x (\"%s\"): it is not "
            "byte-level",
            byte, ByteCharacter(byte)));
      }
      byte_tokens_[byte] = token->second;
    }
    if (BoolOr(model, "ignore_merges", false)) {
      for (const auto& [piece, token] : vocab) {
        const std::string bytes = PieceBytes(piece);
        std::string again;
        for (const char byte : bytes) again += ByteCharacter(byte);
        if (again == piece) words_[bytes] = token;
      }
    }
    for (size_t i = 0; i < model["merges"].size(); ++i) {
      const Json& merge = model["merges"][i];
      const auto wrong = [&](absl::string_view what) {
        return Refuse(absl::StrCat("model.merges[", i, "]"), merge, what);
      };
      std::string left, right;
      if (merge.is_string()) {
        const std::string& pair = merge.get_ref<const std::string&>();
        const size_t space = pair.find(' ');
        if (space == std::string::npos ||
            pair.find(' ', space + 1) != std::string::npos)
          return wrong("it must be two pieces and a space");
        left = pair.substr(0, space), right = pair.substr(space + 1);
      } else if (merge.is_array() && merge.size() == 2 &&
                 merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>(), right = merge[1].get<std::string>();
      } else {
        return wrong("it must be two pieces");
      }
      const auto a = vocab.find(left), b = vocab.find(right),
                 merged = vocab.find(left + right);
      if (a == vocab.end() || b == vocab.end() || merged == vocab.end())
        return wrong("both pieces and what they make must be in model.vocab");
      bpe_.AddMerge(a->second, b->second, merged->second);
    }
    return absl::OkStatus();
  }

  absl::Status ParseNormalizer(const Json& normalizer) {
    SG_ASSIGN_OR_RETURN(const std::vector<Json> parts,
                        PartsOf("normalizer", normalizer, "normalizers"));
    for (const Json& part : parts) {
      if (TypeOf(part) != "NFC")
        return Refuse("normalizer", part, "NFC or none is understood");
      nfc_ = true;
    }
    return absl::OkStatus();
  }

  absl::Status ParseAddedTokens(const Json& tokens) {
    if (tokens.is_null()) return absl::OkStatus();
    if (!tokens.is_array())
      return Refuse("added_tokens", tokens, "it must be a list");
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string path = absl::StrCat("added_tokens[", i, "]");
      const Json& token = tokens[i];
      SG_RETURN_IF_ERROR(CheckKeys(path, token,
                                   {"id", "content", "single_word", "lstrip",
                                    "rstrip", "normalized", "special"}));
      for (const char* key : {"single_word", "lstrip", "rstrip"})
        SG_RETURN_IF_ERROR(CheckOneOf(path, token, key, {false}));
      if (!token.contains("content") || !token["content"].is_string() ||
          token["content"].get_ref<const std::string&>().empty() ||
          !token.contains("id")) {
        return Refuse(path, token, "it must have an id and a content");
      }
      const std::string content = token["content"].get<std::string>();
      const Json& id = token["id"];
      // A piece of the model's own may be listed again.
      if (!IsToken(id) || bytes_of_.count(id.get<int32_t>()) == 0) {
        SG_RETURN_IF_ERROR(AddToken(content, id));
      } else if (bytes_of_[id.get<int32_t>()] != PieceBytes(content)) {
        return Refuse(absl::StrCat(path, ".id"), id,
                      "another piece has it too");
      }
      added_[content] = id.get<int32_t>();
      if (BoolOr(token, "normalized", true)) {
        normalized_.Add(nfc_ ? Nfc(content) : content, id.get<int32_t>());
      } else {
        raw_.Add(content, id.get<int32_t>());
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParsePreTokenizer(const Json& pre_tokenizer) {
    SG_ASSIGN_OR_RETURN(
        const std::vector<Json> parts,
        PartsOf("pre_tokenizer", pre_tokenizer, "pretokenizers"));
    for (const Json& part : parts) {
      const std::string type = TypeOf(part);
      Step step;
      std::string pattern;
      if (type == "ByteLevel") {
        SG_RETURN_IF_ERROR(CheckKeys(
            "pre_tokenizer", part,
            {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
        step.add_prefix_space = BoolOr(part, "add_prefix_space", true);
        if (BoolOr(part, "use_regex", true)) pattern = kGpt2Pattern;
      } else if (type == "Split") {
        SG_RETURN_IF_ERROR(CheckKeys(
            "pre_tokenizer", part, {"type", "pattern", "behavior", "invert"}));
        SG_RETURN_IF_ERROR(
            CheckOneOf("pre_tokenizer", part, "behavior", {"Isolated"}));
        SG_RETURN_IF_ERROR(
            CheckOneOf("pre_tokenizer", part, "invert", {false}));
        const Json::json_pointer regex("/pattern/Regex");
        if (!part.contains(regex) || !part[regex].is_string())
          return Refuse("pre_tokenizer.pattern", part, "Regex is understood");
        pattern = part[regex].get<std::string>();
      } else if (type == "Digits") {
        SG_RETURN_IF_ERROR(
            CheckKeys("pre_tokenizer", part, {"type", "individual_digits"}));
        step.digits = true;
        step.each_digit = BoolOr(part, "individual_digits", false);
      } else {
        return Refuse("pre_tokenizer", part,
                      "ByteLevel, Split, Digits and Sequence are understood");
      }
      if (!pattern.empty()) {
        SG_ASSIGN_OR_RETURN(step.regex, RegexSplitter::Create(pattern));
      }
      steps_.push_back(std::move(step));
    }
    if (parts.empty() || TypeOf(parts.back()) != "ByteLevel")
      return Refuse("pre_tokenizer", pre_tokenizer, "it must end in ByteLevel");
    return absl::OkStatus();
  }

  absl::Status ParsePostProcessor(const Json& processor) {
    SG_ASSIGN_OR_RETURN(const std::vector<Json> parts,
                        PartsOf("post_processor", processor, "processors"));
    for (const Json& part : parts) {
      if (TypeOf(part) == "ByteLevel") continue;  // offsets only
      if (TypeOf(part) != "TemplateProcessing" || !part.contains("single") ||
          !part["single"].is_array()) {
        return Refuse("post_processor", part,
                      "ByteLevel and TemplateProcessing are understood");
      }
      for (const Json& piece : part["single"]) {
        if (piece.is_object() && piece.contains("Sequence")) break;
        const Json::json_pointer name("/SpecialToken/id");
        if (!piece.is_object() || !piece.contains(name) ||
            !piece[name].is_string() ||
            added_.count(piece[name].get<std::string>()) == 0) {
          return Refuse("post_processor.single", piece,
                        "it must be a Sequence or one of added_tokens");
        }
        prefix_.push_back(added_[piece[name].get<std::string>()]);
      }
    }
    return absl::OkStatus();
  }

  // The steps from `number` on.
  void Apply(size_t number, absl::string_view piece,
             std::vector<int32_t>* tokens) const {
    if (number == steps_.size()) return EncodeWord(piece, tokens);
    const Step& step = steps_[number];
    std::string with_space;
    if (step.add_prefix_space && piece[0] != ' ') {
      with_space = absl::StrCat(" ", piece);
      piece = with_space;
    }
    const auto next = [&](absl::string_view part) {
      Apply(number + 1, part, tokens);
    };
    if (step.digits) return SplitDigits(step.each_digit, piece, next);
    if (step.regex == nullptr) return next(piece);
    step.regex->Split(piece, next);
  }

  static void SplitDigits(
      bool each, absl::string_view text,
      absl::FunctionRef<void(absl::string_view part)> take) {
    size_t begin = 0;
    bool in_number = false;
    for (size_t i = 0; i < text.size();) {
      int length = 1;
      const bool number = StartsWithNumber(text.substr(i), &length);
      if (i > begin && (number != in_number || (number && each))) {
        take(text.substr(begin, i - begin));
        begin = i;
      }
      in_number = number;
      i += length;
    }
    if (begin < text.size()) take(text.substr(begin));
  }

  void EncodeWord(absl::string_view word, std::vector<int32_t>* tokens) const {
    if (!words_.empty()) {
      const auto whole = words_.find(std::string(word));
      if (whole != words_.end()) return tokens->push_back(whole->second);
    }
    std::vector<int32_t> symbols;
    symbols.reserve(word.size());
    for (const char byte : word)
      symbols.push_back(byte_tokens_[static_cast<unsigned char>(byte)]);
    bpe_.Merge(&symbols);
    tokens->insert(tokens->end(), symbols.begin(), symbols.end());
  }

  std::string text_;
  int64_t vocab_size_ = 0;
  absl::flat_hash_map<int32_t, std::string> bytes_of_;
  std::array<int32_t, 256> byte_tokens_ = {};
  // Whole words that are not merged, by their bytes (ignore_merges).
  absl::flat_hash_map<std::string, int32_t> words_;
  Bpe bpe_;
  bool nfc_ = false;
  absl::flat_hash_map<std::string, int32_t> added_;
  AddedTokens raw_, normalized_;  // found before and after normalisation
  std::vector<Step> steps_;
  std::vector<int32_t> prefix_;
  std::optional<int32_t> end_of_text_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizerJson(
    absl::string_view text) {
  return MakeTokenizer(ParseJson(text), text);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(
    const Json& json, absl::string_view text) {
  if (!json.is_object())
    return absl::InvalidArgumentError("it is no JSON object");
  if (json.contains("model") && TypeOf(json["model"]) == "bytes")
    return MakeByteTokenizer();
  auto tokenizer = std::make_unique<JsonTokenizer>();
  SG_RETURN_IF_ERROR(tokenizer->Parse(text, json));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace shardgraph
