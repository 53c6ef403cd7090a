// JSON text, read and written in one place: the library's parser and serializer
// are templates that every file using them would compile again.
#ifndef FSDP_FILES_JSON_H_
#define FSDP_FILES_JSON_H_

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace shardgraph {

// The value that `text` describes; discarded (is_discarded()) if it is no JSON,
// or nests deeper than 500. A discarded value is no object, array, string or
// number.
nlohmann::json ParseJson(absl::string_view text);

// On one line, or with `indent` spaces per level. Bytes that are no UTF-8 come
// out as U+FFFD.
std::string JsonText(const nlohmann::json& value, int indent = -1);

}  // namespace shardgraph

#endif  // FSDP_FILES_JSON_H_
