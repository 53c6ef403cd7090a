// AddedTokens: tokens that are found in a text before anything else is done to
// it, such as "<|endoftext|>".
#ifndef TOOLS_TEXT_ADDED_TOKENS_H_
#define TOOLS_TEXT_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

class AddedTokens {
 public:
  // `content` is not empty.
  void Add(const std::string& content, int32_t token);

  // Cuts the text at the tokens it contains, the leftmost first, the longest of
  // those that start at one place; hands out what lies between (never empty)
  // and the tokens, in order.
  void Cut(absl::string_view text,
           absl::FunctionRef<void(absl::string_view part)> take_text,
           absl::FunctionRef<void(int32_t token)> take_token) const;

 private:
  struct Entry {
    std::string content;
    int32_t token;
  };

  std::array<std::vector<Entry>, 256> by_first_;  // longest first
};

}  // namespace shardgraph

#endif  // TOOLS_TEXT_ADDED_TOKENS_H_
