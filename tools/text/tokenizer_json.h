// Byte-level BPE as Hugging Face's tokenizer.json describes it (and plain
// bytes, as ours does).
//
// A text is cut at added tokens, normalised (NFC or not at all), cut into words
// by regular expressions, and the bytes of each word are merged (bpe.h).
// Understood are the parts that GPT-2, Llama 3, Qwen2 and their like have:
//
//   normalizer      none, NFC, Sequence of these
//   pre_tokenizer   ByteLevel, Split with a regular expression (Isolated),
//                   Digits, Sequence of these; ByteLevel is among them
//   model           BPE without unk_token, dropout, affixes and byte_fallback;
//                   every byte has a token
//   decoder         ByteLevel
//   post_processor  none, ByteLevel, TemplateProcessing of special tokens
//                   before and behind the text, Sequence of these
//   added_tokens    without single_word, lstrip, rstrip
//
// Everything else is refused by name: it might change tokens.
#ifndef TOOLS_TEXT_TOKENIZER_JSON_H_
#define TOOLS_TEXT_TOKENIZER_JSON_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "tools/text/tokenizer.h"

namespace shardgraph {

// InvalidArgument names the part that is not understood; not the file.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizerJson(
    absl::string_view text);

// The same of what has been parsed; `text` becomes its description.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(
    const nlohmann::json& json, absl::string_view text);

}  // namespace shardgraph

#endif  // TOOLS_TEXT_TOKENIZER_JSON_H_
