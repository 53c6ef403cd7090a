#include "tools/text/added_tokens.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace shardgraph {

void AddedTokens::Add(const std::string& content, int32_t token) {
  auto& entries = by_first_[static_cast<unsigned char>(content[0])];
  entries.insert(std::find_if(entries.begin(), entries.end(),
                              [&](const Entry& entry) {
                                return entry.content.size() < content.size();
                              }),
                 {content, token});
}

void AddedTokens::Cut(absl::string_view text,
                      absl::FunctionRef<void(absl::string_view part)> take_text,
                      absl::FunctionRef<void(int32_t token)> take_token) const {
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Entry* found = nullptr;
    for (const Entry& entry : by_first_[static_cast<unsigned char>(text[i])]) {
      if (absl::StartsWith(text.substr(i), entry.content)) {
        found = &entry;
        break;
      }
    }
    if (found == nullptr) {
      ++i;
      continue;
    }
    if (i > begin) take_text(text.substr(begin, i - begin));
    take_token(found->token);
    i += found->content.size();
    begin = i;
  }
  if (begin < text.size()) take_text(text.substr(begin));
}

}  // namespace shardgraph
