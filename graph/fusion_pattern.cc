// The texts of patterns.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "graph/fusion.h"
#include "kernels/check.h"
#include "kernels/op_table.h"

namespace shardgraph {
namespace {

class Parser {
 public:
  explicit Parser(const FusionPattern& pattern) : pattern_(pattern) {}

  ParsedFusion Parse() {
    ParsedFusion parsed;
    for (absl::string_view text : absl::StrSplit(pattern_.replaces, ';'))
      parsed.replaces.push_back(ParseNode(text));
    Check(!parsed.replaces.back().shared, pattern_.replaces);
    const size_t known = names_.size();
    parsed.by = ParseNode(pattern_.by);
    Check(names_.size() == known && !parsed.by.shared, pattern_.by);
    for (int result : parsed.by.results) {
      const bool made = std::any_of(
          parsed.replaces.begin(), parsed.replaces.end(),
          [&](const FusionNode& node) {
            return std::find(node.results.begin(), node.results.end(),
                             result) != node.results.end();
          });
      Check(made, pattern_.by);
    }
    for (size_t i = 0; i < known; ++i) {
      absl::string_view whole = names_[i];
      const bool right = absl::ConsumeSuffix(&whole, ".right");
      if (!right && !absl::ConsumeSuffix(&whole, ".left")) continue;
      const auto found = std::find(names_.begin(), names_.end(), whole);
      Check(found != names_.end(), pattern_.replaces);
      parsed.halves.push_back({static_cast<int>(i),
                               static_cast<int>(found - names_.begin()),
                               right});
    }
    parsed.variables = static_cast<int>(names_.size());
    FindSources(&parsed);
    return parsed;
  }

 private:
  void Check(bool good, absl::string_view text) const {
    SG_CHECK(good) << "pattern " << std::string(pattern_.name)
                   << " is wrong at: " << std::string(text);
  }

  void FindSources(ParsedFusion* parsed) const {
    std::vector<int>& sources = parsed->sources;
    sources.assign(parsed->variables, -1);
    for (size_t k = 0; k < parsed->replaces.size(); ++k) {
      if (!parsed->replaces[k].shared) continue;
      for (int result : parsed->replaces[k].results)
        sources[result] = static_cast<int>(k);
    }
    for (const FusionHalf& half : parsed->halves)
      sources[half.half] = sources[half.whole];
    for (const auto& variables : {parsed->by.results, parsed->by.operands})
      for (int variable : variables) Check(sources[variable] < 0, pattern_.by);
  }

  // "y, mean, rstd = layer_norm(x, weight...) bias=1"; "*y" if it is shared.
  FusionNode ParseNode(absl::string_view text) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    const size_t open = sides.second.find('('), close = sides.second.find(')');
    Check(open != absl::string_view::npos && close != absl::string_view::npos &&
              open < close,
          text);
    FusionNode node;
    const absl::string_view op =
        absl::StripAsciiWhitespace(sides.second.substr(0, open));
    node.op = FindOp(op);
    Check(node.op != nullptr && node.op->in_place.empty(), text);
    absl::string_view results = absl::StripAsciiWhitespace(sides.first);
    node.shared = absl::ConsumePrefix(&results, "*");
    node.results = Variables(results);
    const absl::string_view operands =
        sides.second.substr(open + 1, close - open - 1);
    node.rest = absl::EndsWith(operands, "...");
    node.operands = Variables(operands);
    Check(!node.results.empty() && !node.operands.empty(), text);
    for (absl::string_view attribute : absl::StrSplit(
             sides.second.substr(close + 1), ' ', absl::SkipWhitespace())) {
      const std::pair<absl::string_view, absl::string_view> entry =
          absl::StrSplit(attribute, absl::MaxSplits('=', 1));
      Check(!entry.first.empty() && !entry.second.empty(), text);
      int64_t number;
      if (absl::SimpleAtoi(entry.second, &number)) {
        node.attributes.SetInt(entry.first, number);
      } else {
        node.attributes.SetString(entry.first, entry.second);
      }
    }
    return node;
  }

  std::vector<int> Variables(absl::string_view list) {
    std::vector<int> variables;
    for (absl::string_view part : absl::StrSplit(list, ',')) {
      const std::string name(
          absl::StripSuffix(absl::StripAsciiWhitespace(part), "..."));
      Check(!name.empty(), list);
      const auto found = std::find(names_.begin(), names_.end(), name);
      variables.push_back(static_cast<int>(found - names_.begin()));
      if (found == names_.end()) names_.push_back(name);
    }
    return variables;
  }

  const FusionPattern& pattern_;
  std::vector<std::string> names_;
};

}  // namespace

ParsedFusion ParseFusion(const FusionPattern& pattern) {
  return Parser(pattern).Parse();
}

}  // namespace shardgraph
