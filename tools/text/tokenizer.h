// Tokenizer: text to tokens and back. Immutable; safe to use from several
// threads.
#ifndef TOOLS_TEXT_TOKENIZER_H_
#define TOOLS_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shardgraph {

// The name of a tokenizer's file in a data folder or a run directory.
inline constexpr char kTokenizerFile[] = "tokenizer.json";

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual int64_t vocab_size() const = 0;
  // Appends the tokens of `text`.
  virtual void Encode(absl::string_view text,
                      std::vector<int32_t>* tokens) const = 0;
  // The bytes that the tokens stand for; they need not be whole UTF-8
  // characters. Tokens outside the vocabulary stand for nothing.
  virtual std::string Decode(absl::Span<const int32_t> tokens) const = 0;
  // The text of a tokenizer.json that LoadTokenizer reads.
  virtual std::string Description() const = 0;
};

// Tokens 0 to 255 are the bytes.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// `name_or_path`: "bytes", a tokenizer.json, or a folder that holds one.
// InvalidArgument says what is known.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& name_or_path);

}  // namespace shardgraph

#endif  // TOOLS_TEXT_TOKENIZER_H_
