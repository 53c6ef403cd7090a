#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/launch/environment.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr size_t kMaxNodes = 1 << 16;

absl::Status Malformed(absl::string_view list, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("node list '", list, "': ", why));
}

// "01-03,7" -> 01 02 03 7. A range keeps the width of its first number.
absl::StatusOr<std::vector<std::string>> ExpandRanges(
    absl::string_view list, absl::string_view ranges) {
  std::vector<std::string> numbers;
  for (const absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    uint32_t low = 0, high = 0;
    const bool digits =
        range.find_first_not_of("0123456789-") == absl::string_view::npos;
    if (!digits || ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &low) ||
        !absl::SimpleAtoi(ends.back(), &high) || high < low ||
        high - low >= kMaxNodes || numbers.size() > kMaxNodes) {
      return Malformed(list, absl::StrCat("'", range, "' is no range"));
    }
    for (uint32_t n = low; n <= high; ++n) {
      std::string text = absl::StrCat(n);
      if (text.size() < ends.front().size()) {
        text.insert(0, ends.front().size() - text.size(), '0');
      }
      numbers.push_back(std::move(text));
    }
  }
  return numbers;
}

// One element of the list, with its brackets.
absl::Status ExpandName(absl::string_view list, absl::string_view name,
                        std::vector<std::string>* nodes) {
  if (name.empty()) return Malformed(list, "a name is empty");
  std::vector<std::string> names = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    const absl::string_view literal = name.substr(0, open);
    if (literal.find(']') != absl::string_view::npos) {
      return Malformed(list, "a ']' has no '['");
    }
    for (std::string& prefix : names) absl::StrAppend(&prefix, literal);
    if (open == absl::string_view::npos) break;
    const size_t close = name.find(']', open);
    if (close == absl::string_view::npos) {
      return Malformed(list, "a '[' has no ']'");
    }
    SG_ASSIGN_OR_RETURN(
        const std::vector<std::string> numbers,
        ExpandRanges(list, name.substr(open + 1, close - open - 1)));
    if (names.size() * numbers.size() > kMaxNodes) {
      return Malformed(list, absl::StrCat("more than ", kMaxNodes, " nodes"));
    }
    std::vector<std::string> longer;
    for (const std::string& prefix : names) {
      for (const std::string& number : numbers) {
        longer.push_back(absl::StrCat(prefix, number));
      }
    }
    names = std::move(longer);
    name = name.substr(close + 1);
  }
  nodes->insert(nodes->end(), names.begin(), names.end());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandNodeList(
    absl::string_view list) {
  std::vector<std::string> nodes;
  // Commas inside brackets do not separate names.
  size_t begin = 0;
  bool inside = false;
  for (size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && list[i] == '[') inside = true;
    if (i < list.size() && list[i] == ']') inside = false;
    if (i == list.size() || (list[i] == ',' && !inside)) {
      SG_RETURN_IF_ERROR(
          ExpandName(list, list.substr(begin, i - begin), &nodes));
      begin = i + 1;
    }
  }
  return nodes;
}

}  // namespace shardgraph
