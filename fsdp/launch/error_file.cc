#include "fsdp/launch/error_file.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/files/json.h"
#include "nlohmann/json.hpp"

namespace shardgraph {

absl::Status WriteErrorFile(const std::string& path, const std::string& message,
                            absl::Time time) {
  if (path.empty()) return absl::OkStatus();
  nlohmann::json json;
  json["message"]["message"] = message;
  json["message"]["extraInfo"]["py_callstack"] = message;
  json["message"]["extraInfo"]["timestamp"] =
      absl::StrCat(absl::ToUnixSeconds(time));
  const std::string part = absl::StrCat(path, ".", getpid());
  std::ofstream file(part, std::ios::binary);
  file << JsonText(json);
  file.close();
  if (file.fail() || rename(part.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(part.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
  }
  return absl::OkStatus();
}

absl::StatusOr<RankError> ReadErrorFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(path);
  std::ostringstream text;
  text << file.rdbuf();
  const nlohmann::json json = ParseJson(text.str());
  const auto string_at = [&json](const char* pointer) -> std::string {
    const nlohmann::json::json_pointer at(pointer);
    if (!json.contains(at) || !json[at].is_string()) return "";
    return json[at].get<std::string>();
  };
  RankError error;
  error.message = string_at("/message/message");
  if (error.message.empty() ||
      !absl::SimpleAtoi(string_at("/message/extraInfo/timestamp"),
                        &error.unix_seconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is no error file of a rank"));
  }
  return error;
}

}  // namespace shardgraph
