#include "fsdp/shard/parameter_groups.h"

#include <algorithm>
#include <regex>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

bool HasDecay(const Parameter& parameter) {
  return parameter.shape.size() >= 2;
}

// The parameters whose whole name matches, at least one.
absl::StatusOr<std::vector<const Parameter*>> Matching(
    const Model& model, const std::string& field, const std::string& pattern) {
  std::vector<const Parameter*> matching;
  try {
    const std::regex regex(pattern);
    for (const Parameter* parameter : model.parameters()) {
      if (std::regex_match(parameter->name, regex))
        matching.push_back(parameter);
    }
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is \"", pattern,
                     "\", which is not a regular expression: ", error.what()));
  }
  if (matching.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        field, " is \"", pattern,
        "\", which matches no parameter; it must match whole names such as \"",
        model.parameters().front()->name, "\" or \"",
        model.parameters().back()->name, "\""));
  }
  return matching;
}

}  // namespace

int32_t ParameterGroups::Of(const Parameter& parameter) const {
  const auto named = of_.find(&parameter);
  if (named != of_.end()) return named->second;
  return HasDecay(parameter) ? kDecayGroup : kNoDecayGroup;
}

absl::StatusOr<ParameterGroups> ParameterGroups::Create(
    const Model& model, const OptimizerSpec& spec) {
  if (spec.groups_size() > kMaxPatterns) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer.groups has ", spec.groups_size(), " patterns; at most ",
        kMaxPatterns, " are possible: join those alike with |"));
  }
  ParameterGroups result;
  result.groups_[kDecayGroup].weight_decay = spec.weight_decay();
  for (int i = 0; i < spec.frozen_size(); ++i) {
    SG_ASSIGN_OR_RETURN(
        const std::vector<const Parameter*> matching,
        Matching(model, absl::StrCat("optimizer.frozen[", i, "]"),
                 spec.frozen(i)));
    for (const Parameter* parameter : matching)
      result.of_.emplace(parameter, kFrozenGroup);
  }
  if (model.has_adapters()) {
    for (const Parameter* parameter : model.parameters()) {
      if (!parameter->adapter) result.of_.emplace(parameter, kFrozenGroup);
    }
  }
  if (result.of_.size() == model.parameters().size()) {
    return absl::InvalidArgumentError(
        "optimizer.frozen matches every parameter; leave something to train");
  }
  for (int i = 0; i < spec.groups_size(); ++i) {
    const ParameterGroup& group = spec.groups(i);
    SG_ASSIGN_OR_RETURN(
        const std::vector<const Parameter*> matching,
        Matching(model, absl::StrCat("optimizer.groups[", i, "].pattern"),
                 group.pattern()));
    const int32_t first = static_cast<int32_t>(result.groups_.size());
    for (const bool decays : {true, false}) {
      Group& made = result.groups_.emplace_back();
      if (group.has_learning_rate_factor())
        made.learning_rate_factor = group.learning_rate_factor();
      made.weight_decay = group.has_weight_decay() ? group.weight_decay()
                          : decays                 ? spec.weight_decay()
                                                   : 0;
    }
    for (const Parameter* parameter : matching)
      result.of_.emplace(parameter, first + (HasDecay(*parameter) ? 0 : 1));
  }
  return result;
}

}  // namespace shardgraph
