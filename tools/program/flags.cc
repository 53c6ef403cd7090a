#include "tools/program/flags.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/config/text_config.h"

namespace shardgraph {
namespace {

std::string Usage(absl::string_view usage, const std::vector<Flag>& flags) {
  std::string text = absl::StrCat(usage, "\n");
  for (const Flag& flag : flags)
    absl::StrAppend(&text, "  --", flag.name, "  ", flag.help, "\n");
  return text;
}

absl::Status Wrong(const Flag& flag, absl::string_view value,
                   absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag.name, " is \"", value, "\"; it takes ", allowed,
                   " (", flag.help, ")"));
}

absl::Status SetFlag(const Flag& flag, const std::string& value) {
  if (auto* const* text = std::get_if<std::string*>(&flag.value)) {
    **text = value;
  } else if (auto* const* integer = std::get_if<int64_t*>(&flag.value)) {
    if (!absl::SimpleAtoi(value, *integer))
      return Wrong(flag, value, "an integer");
  } else if (auto* const* number = std::get_if<double*>(&flag.value)) {
    if (!absl::SimpleAtod(value, *number))
      return Wrong(flag, value, "a number");
  } else if (auto* const* truth = std::get_if<bool*>(&flag.value)) {
    if (!absl::SimpleAtob(value, *truth))
      return Wrong(flag, value, "true or false");
  } else {
    std::get<std::vector<std::string>*>(flag.value)->push_back(value);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseFlags(absl::string_view usage,
                        const std::vector<std::string>& args,
                        const std::vector<Flag>& flags,
                        std::vector<std::string>* positional) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--") {
      positional->insert(positional->end(), args.begin() + i + 1, args.end());
      break;
    }
    if (!absl::StartsWith(args[i], "--")) {
      if (absl::StartsWith(args[i], "-") && args[i].size() > 1) {
        return absl::InvalidArgumentError(absl::StrCat(
            "unknown flag ", args[i], "; flags start with two dashes\n",
            Usage(usage, flags)));
      }
      positional->push_back(args[i]);
      continue;
    }
    const std::pair<std::string, std::string> parts = absl::StrSplit(
        absl::string_view(args[i]).substr(2), absl::MaxSplits('=', 1));
    const bool has_value = absl::StrContains(args[i], "=");
    if (parts.first == "help") return absl::CancelledError(Usage(usage, flags));
    const auto flag =
        std::find_if(flags.begin(), flags.end(),
                     [&](const Flag& f) { return f.name == parts.first; });
    if (flag == flags.end()) {
      std::vector<std::string> names;
      for (const Flag& f : flags) names.push_back(f.name);
      const std::string nearest = NearestName(parts.first, names);
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown flag --", parts.first,
          nearest.empty() ? ""
                          : absl::StrCat("; did you mean --", nearest, "?"),
          "\n", Usage(usage, flags)));
    }
    std::string value = parts.second;
    if (!has_value) {
      if (std::holds_alternative<bool*>(flag->value)) {
        value = "true";
      } else if (i + 1 < args.size() && !absl::StartsWith(args[i + 1], "--")) {
        value = args[++i];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag->name, " has no value; write --",
                         flag->name, "=VALUE (", flag->help, ")"));
      }
    }
    const absl::Status status = SetFlag(*flag, value);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> ArgumentsOf(int argc, char** argv) {
  return std::vector<std::string>(argv + 1, argv + argc);
}

}  // namespace shardgraph
