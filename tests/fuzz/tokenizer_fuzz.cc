// tokenizer.json: ParseJson and MakeTokenizer, which together are
// ParseTokenizerJson, and Encode and Decode of the tokenizer. The input up to
// its first line end changes a small valid tokenizer (a JSON merge patch), or,
// where that is no object, is the whole file; what follows is encoded, by that
// tokenizer and by one with Qwen2's pre-tokenizer. Tokens are in the
// vocabulary, and bytes come back.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "fsdp/files/json.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"
#include "tools/text/tokenizer_json.h"
#include "tools/text/unicode.h"

namespace shardgraph {
namespace {

// Qwen2's.
constexpr char kSplit[] = R"({"type": "Sequence", "pretokenizers": [
      {"type": "Split", "behavior": "Isolated", "pattern": {"Regex":
       "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
      {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})";

// The bytes and a few merges; no regular expression, which takes longer to
// compile than all the rest.
nlohmann::json SmallTokenizer() {
  nlohmann::json vocab;
  int next = 256;
  const auto character = [&](int byte) {
    const bool itself = (byte >= 33 && byte <= 126) ||
                        (byte >= 161 && byte <= 172) || byte >= 174;
    const int code = itself ? byte : next++;
    return code < 128 ? std::string(1, static_cast<char>(code))
                      : std::string{static_cast<char>(0xc0 | code >> 6),
                                    static_cast<char>(0x80 | (code & 63))};
  };
  for (int byte = 0; byte < 256; ++byte) vocab[character(byte)] = byte;
  int token = 256;
  for (const char* piece :
       {"th", "the", "in", "ing", "aa", "aaaa", "\xc4\xa0t"})
    vocab[piece] = token++;
  nlohmann::json json = ParseJson(R"({
    "added_tokens": [{"id": 300, "content": "<|endoftext|>", "special": true,
                      "normalized": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                      "use_regex": false},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
              "merges": ["t h", "th e", "i n", "in g", "a a", "aa aa",
                         "\u0120 t"]}})");
  json["model"]["vocab"] = std::move(vocab);
  return json;
}

// What brings a value back that MergePatch has changed.
struct Change {
  nlohmann::json* object;
  std::string key;
  std::optional<nlohmann::json> before;
};

// JSON's merge patch in place: the vocabulary is not copied for every input.
void MergePatch(const nlohmann::json& patch, nlohmann::json* object,
                std::vector<Change>* changes) {
  for (const auto& item : patch.items()) {
    const auto old = object->find(item.key());
    if (item.value().is_object() && old != object->end() && old->is_object()) {
      MergePatch(item.value(), &*old, changes);
      continue;
    }
    changes->push_back({object, item.key(), std::nullopt});
    if (old != object->end()) changes->back().before = std::move(*old);
    if (item.value().is_null()) {
      object->erase(item.key());
    } else {
      (*object)[item.key()] = item.value();
    }
  }
}

void Undo(std::vector<Change>* changes) {
  for (; !changes->empty(); changes->pop_back()) {
    Change& last = changes->back();
    if (last.before.has_value()) {
      (*last.object)[last.key] = *std::move(last.before);
    } else {
      last.object->erase(last.key);
    }
  }
}

void CheckEncoding(const Tokenizer& tokenizer, absl::string_view text,
                   bool exact) {
  std::vector<int32_t> tokens;
  tokenizer.Encode(text, &tokens);
  for (const int32_t token : tokens)
    SG_CHECK(token >= 0 && token < tokenizer.vocab_size());
  const std::string decoded = tokenizer.Decode(tokens);
  if (exact) SG_CHECK(decoded == WellFormedUtf8(text));
}

}  // namespace
}  // namespace shardgraph

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  static nlohmann::json* const base = new nlohmann::json(SmallTokenizer());
  static const Tokenizer* const plain = [] {
    nlohmann::json json = *base;
    json["pre_tokenizer"] = ParseJson(kSplit);
    return ParseTokenizerJson(JsonText(json))->release();
  }();
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(input.find('\n'), input.size());
  const absl::string_view text = input.substr(std::min(line + 1, input.size()));
  if (!text.empty()) CheckEncoding(*plain, text, /*exact=*/true);
  const nlohmann::json patch = ParseJson(input.substr(0, line));
  if (!patch.is_object()) {
    const auto tokenizer = ParseTokenizerJson(input);
    if (tokenizer.ok()) CheckEncoding(**tokenizer, text, /*exact=*/false);
    return 0;
  }
  std::vector<Change> changes;
  MergePatch(patch, base, &changes);
  {
    const auto tokenizer = MakeTokenizer(*base, input);
    if (tokenizer.ok()) CheckEncoding(**tokenizer, text, /*exact=*/false);
  }
  Undo(&changes);
  return 0;
}
