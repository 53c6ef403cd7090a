// Tokenizer: text to tokens and back. Immutable; safe to use from several
// threads.
#ifndef TOOLS_TEXT_TOKENIZER_H_
#define TOOLS_TEXT_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace shardgraph {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Every token is smaller.
  virtual int64_t vocab_size() const = 0;
  // Appends the tokens of `text`. Parts that are no UTF-8 become U+FFFD (bytes
  // alone are kept).
  virtual void Encode(absl::string_view text,
                      std::vector<int32_t>* tokens) const = 0;
  // The bytes that the tokens stand for, one by one: they need not be whole
  // UTF-8 characters, and the space that SentencePiece puts before a text stays.
  // Tokens outside the vocabulary stand for nothing.
  virtual std::string Decode(absl::Span<const int32_t> tokens) const = 0;
  // Whether text may be cut between `before` and `after`, both not empty: its
  // parts have the tokens of the whole (SentencePiece: but for the space that
  // it puts before a text).
  virtual bool MayCut(absl::string_view before,
                      absl::string_view after) const = 0;
  // What models trained with this tokenizer expect before a text.
  virtual std::vector<int32_t> Prefix() const { return {}; }
  // The token that ends a document; nullopt if there is none.
  virtual std::optional<int32_t> EndOfText() const { return std::nullopt; }
  // One of kTokenizerFiles (tokenizer_files.h), and the bytes of such a file
  // that LoadTokenizer reads.
  virtual std::string FileName() const { return "tokenizer.json"; }
  virtual std::string Description() const = 0;
};

// Tokens 0 to 255 are the bytes.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// `name_or_path`: "bytes", a tokenizer.json, a SentencePiece model, or a folder
// that holds one. InvalidArgument names the file, what in it is not understood,
// and what is known.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& name_or_path);

}  // namespace shardgraph

#endif  // TOOLS_TEXT_TOKENIZER_H_
