// Unicode for tokenizers: well-formed UTF-8, normalisation, regular expressions
// with Unicode classes. By ICU.
#ifndef TOOLS_TEXT_UNICODE_H_
#define TOOLS_TEXT_UNICODE_H_

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

// `text` with each ill-formed part replaced by U+FFFD, as Python's
// errors="replace" and Rust's from_utf8_lossy do: one for each longest prefix
// of a character that is cut short.
std::string WellFormedUtf8(absl::string_view text);

// Normalisation form C of well-formed UTF-8.
std::string Nfc(absl::string_view text);

// Whether the character that starts at text[0] is a number (categories Nd, Nl,
// No); its bytes in `length`. The text is well-formed and not empty.
bool StartsWithNumber(absl::string_view text, int* length);

// A regular expression that cuts text into pieces. Immutable; safe to use from
// several threads.
class RegexSplitter {
 public:
  // InvalidArgument: ICU's regular expressions do not know `pattern`.
  static absl::StatusOr<std::unique_ptr<RegexSplitter>> Create(
      const std::string& pattern);
  ~RegexSplitter();
  RegexSplitter(const RegexSplitter&) = delete;
  RegexSplitter& operator=(const RegexSplitter&) = delete;

  // Hands out the matches, and what lies between them, in order. The text is
  // well-formed UTF-8. Where matching takes more memory or steps than it may,
  // the rest is one piece.
  void Split(absl::string_view text,
             absl::FunctionRef<void(absl::string_view piece)> take) const;

 private:
  RegexSplitter() = default;

  void* regex_ = nullptr;  // URegularExpression
};

}  // namespace shardgraph

#endif  // TOOLS_TEXT_UNICODE_H_
