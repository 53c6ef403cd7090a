#include "fsdp/files/json.h"

#include "nlohmann/json.hpp"

namespace shardgraph {

namespace {

// Values are printed, compared and merged by functions that recurse.
constexpr int kMaxNesting = 500;

bool NestsTooDeeply(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '\\':
        if (in_string) ++i;
        break;
      case '"':
        in_string = !in_string;
        break;
      case '[':
      case '{':
        if (!in_string && ++depth > kMaxNesting) return true;
        break;
      case ']':
      case '}':
        if (!in_string) --depth;
        break;
    }
  }
  return false;
}

}  // namespace

nlohmann::json ParseJson(absl::string_view text) {
  if (NestsTooDeeply(text)) {
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
  return nlohmann::json::parse(text.begin(), text.end(), nullptr,
                               /*allow_exceptions=*/false);
}

std::string JsonText(const nlohmann::json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false,
                    nlohmann::json::error_handler_t::replace);
}

}  // namespace shardgraph
