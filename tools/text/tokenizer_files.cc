#include "tools/text/tokenizer_files.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace shardgraph {

std::string FindTokenizerFile(const std::string& folder) {
  for (const char* name : kTokenizerFiles) {
    const std::string path = absl::StrCat(folder, "/", name);
    std::error_code error;
    if (std::filesystem::is_regular_file(path, error)) return path;
  }
  return "";
}

}  // namespace shardgraph
