#include "fsdp/shard/recompute_policy.h"

#include <cctype>
#include <regex>

#include "absl/strings/str_cat.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {

std::string UnitPattern(absl::Span<const std::string> names) {
  std::string pattern;
  for (const std::string& name : names) {
    if (!pattern.empty()) pattern.push_back('|');
    for (const char c : name) {
      if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
        pattern.push_back(c);
      } else if (c == '^' || c == ']' || c == '\\') {
        absl::StrAppend(&pattern, "\\", std::string(1, c));
      } else {  // easier to read in a text file than a backslash
        absl::StrAppend(&pattern, "[", std::string(1, c), "]");
      }
    }
  }
  return pattern;
}

absl::StatusOr<RecomputePolicy> RecomputePolicy::Create(
    const ShardSpec& spec, const ShardLayout& layout) {
  if (spec.recompute() == AUTO) {
    return absl::InvalidArgumentError(
        "shard.recompute is AUTO, and nothing has been chosen; use NONE, "
        "SELECTIVE or FULL");
  }
  const auto choice = [](Recompute mode, const auto& ops) {
    Choice made;
    made.full = mode == FULL;
    if (mode == SELECTIVE) made.names.insert(ops.begin(), ops.end());
    made.feed_forward = made.names.count(kFeedForward) > 0;
    return made;
  };
  const std::vector<ShardUnit>& units = layout.units();
  RecomputePolicy policy;
  policy.units_.assign(units.size(),
                       choice(spec.recompute(), spec.recompute_ops()));
  std::vector<bool> matched(units.size());
  for (int i = 0; i < spec.recompute_units_size(); ++i) {
    const RecomputeUnits& some = spec.recompute_units(i);
    const auto wrong = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard.recompute_units[", i, "].pattern is \"",
                       some.pattern(), "\", which ", why));
    };
    bool matches = false;
    try {
      const std::regex regex(some.pattern());
      for (size_t unit = 0; unit < units.size(); ++unit) {
        const std::string& name = units[unit].module->name();
        if (name.empty() || !std::regex_match(name, regex)) continue;
        matches = true;
        if (matched[unit]) continue;
        matched[unit] = true;
        policy.units_[unit] = choice(some.recompute(), some.recompute_ops());
      }
    } catch (const std::regex_error& error) {
      return wrong(absl::StrCat("is not a regular expression: ", error.what()));
    }
    if (!matches) {
      return wrong(
          absl::StrCat("matches no unit; it must match whole names such as \"",
                       units.back().module->name(), "\""));
    }
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    Choice& made = policy.units_[unit];
    if (units[unit].module->name().empty()) made = Choice();
    policy.any_ = policy.any_ || made.full || !made.names.empty();
  }
  return policy;
}

bool RecomputePolicy::Recomputes(int unit, absl::string_view op,
                                 bool feed_forward) const {
  const Choice& choice = units_[unit];
  return choice.full || (choice.feed_forward && feed_forward) ||
         choice.names.find(op) != choice.names.end() ||
         choice.names.find(FamilyOf(op)) != choice.names.end();
}

}  // namespace shardgraph
