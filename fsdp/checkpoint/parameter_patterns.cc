#include "fsdp/checkpoint/parameter_patterns.h"

#include <regex>

#include "absl/strings/str_cat.h"

namespace shardgraph {

absl::StatusOr<std::set<const Parameter*>> MatchingParameters(
    const Model& model, const std::vector<std::string>& patterns,
    bool adapters) {
  std::set<const Parameter*> all;
  for (const Parameter* parameter : model.parameters()) {
    if (adapters || !parameter->adapter) all.insert(parameter);
  }
  if (patterns.empty()) return all;
  std::set<const Parameter*> wanted;
  for (const std::string& pattern : patterns) {
    bool matched = false;
    try {
      const std::regex regex(pattern);
      for (const Parameter* parameter : all) {
        if (!std::regex_match(parameter->name, regex)) continue;
        matched = true;
        wanted.insert(parameter);
      }
    } catch (const std::regex_error& error) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint.initialize_parameters has \"", pattern,
                       "\", which is no regular expression: ", error.what()));
    }
    if (!matched) {
      return absl::InvalidArgumentError(absl::StrCat(
          "checkpoint.initialize_parameters has \"", pattern,
          "\", which matches no parameter", adapters ? "" : " but adapters'",
          "; a whole name must match, for example ",
          model.parameters()[0]->name));
    }
  }
  return wanted;
}

}  // namespace shardgraph
