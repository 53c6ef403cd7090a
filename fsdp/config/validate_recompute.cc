#include "fsdp/config/validate_recompute.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/config/text_config.h"
#include "fsdp/shard/recompute_policy.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// `at`: the path of the message that holds both fields.
template <typename Spec>
absl::Status CheckModeAndOps(const std::string& at, const Spec& spec) {
  if (spec.recompute() == SELECTIVE && spec.recompute_ops().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        at, ".recompute is SELECTIVE, but ", at,
        ".recompute_ops is empty; name what is recomputed, for example "
        "norm,pointwise"));
  }
  if (spec.recompute() != SELECTIVE && !spec.recompute_ops().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        at, ".recompute_ops is \"", absl::StrJoin(spec.recompute_ops(), ","),
        "\", but ", at, ".recompute is ", Recompute_Name(spec.recompute()),
        "; leave it out, or set ", at, ".recompute=SELECTIVE"));
  }
  return absl::OkStatus();
}

std::string FieldOf(int i) {
  return absl::StrCat("shard.recompute_units[", i, "]");
}

}  // namespace

absl::Status ValidateRecompute(const ShardSpec& spec) {
  std::vector<std::string> families = {kFeedForward}, names;
  for (const OpFamily& family : OpFamilies())
    families.push_back(std::string(family.name));
  names = families;
  for (const OpDef* op : AllOps()) names.push_back(std::string(op->name));
  const auto check_names = [&](const std::string& at, const auto& ops) {
    for (const std::string& op : ops) {
      if (std::find(names.begin(), names.end(), op) != names.end()) continue;
      const std::string meant = NearestName(op, names);
      return absl::InvalidArgumentError(absl::StrCat(
          at, ".recompute_ops names \"", op, "\", which there is not",
          meant.empty() ? "" : absl::StrCat("; did you mean \"", meant, "\"?"),
          "; give names of ops, or of ", absl::StrJoin(families, ", ")));
    }
    return absl::OkStatus();
  };
  SG_RETURN_IF_ERROR(CheckModeAndOps("shard", spec));
  SG_RETURN_IF_ERROR(check_names("shard", spec.recompute_ops()));
  for (int i = 0; i < spec.recompute_units_size(); ++i) {
    const RecomputeUnits& some = spec.recompute_units(i);
    if (spec.recompute() == AUTO || some.recompute() == AUTO) {
      return absl::InvalidArgumentError(absl::StrCat(
          FieldOf(i), " is given and ",
          spec.recompute() == AUTO ? "shard" : FieldOf(i),
          ".recompute is AUTO, which chooses for all units; leave one of the "
          "two out"));
    }
    SG_RETURN_IF_ERROR(CheckModeAndOps(FieldOf(i), some));
    SG_RETURN_IF_ERROR(check_names(FieldOf(i), some.recompute_ops()));
  }
  if (spec.memory_budget_bytes() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.memory_budget_bytes is ", spec.memory_budget_bytes(),
        "; it must be 0 (the target's memory) or more"));
  }
  if (spec.memory_budget_bytes() > 0 && spec.recompute() != AUTO) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.memory_budget_bytes is ", spec.memory_budget_bytes(),
        ", but shard.recompute is ", Recompute_Name(spec.recompute()),
        "; leave it out, or set shard.recompute=AUTO"));
  }
  return absl::OkStatus();
}

}  // namespace shardgraph
