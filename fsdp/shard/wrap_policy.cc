#include "fsdp/shard/wrap_policy.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Elements of each subtree, a tied parameter counting where it is met first.
class Counts {
 public:
  explicit Counts(const Module& root) { Visit(root); }
  int64_t Of(const Module& module) const { return numel_.at(&module); }

 private:
  int64_t Visit(const Module& module) {
    int64_t n = 0;
    for (const Parameter* parameter : module.parameters()) {
      if (seen_.insert(parameter).second) n += parameter->numel();
    }
    for (const auto& child : module.children()) n += Visit(*child);
    numel_[&module] = n;
    return n;
  }

  std::set<const Parameter*> seen_;
  std::map<const Module*, int64_t> numel_;
};

using Modules = std::set<const Module*>;

void ByBlock(const Module& module, bool root, Modules* units) {
  if (module.block()) {
    units->insert(&module);
    return;
  }
  const bool table = std::any_of(
      module.parameters().begin(), module.parameters().end(),
      [](const Parameter* parameter) { return parameter->shape.size() >= 2; });
  if (table && !root && !module.list() && !module.transparent())
    units->insert(&module);
  for (const auto& child : module.children()) ByBlock(*child, false, units);
}

// Returns the elements wrapped in the subtree.
int64_t SizeBased(const Module& module, bool root, int64_t threshold,
                  const Counts& counts, Modules* units) {
  const int64_t numel = counts.Of(module);
  if (numel < threshold || module.attention()) return 0;
  int64_t wrapped = 0;
  for (const auto& child : module.children())
    wrapped += SizeBased(*child, false, threshold, counts, units);
  if (numel - wrapped >= threshold && !root && !module.list() &&
      !module.transparent()) {
    units->insert(&module);
    return numel;
  }
  return wrapped;
}

template <typename Predicate>
void Matching(const Module& module, bool root, const Predicate& predicate,
              Modules* units) {
  if (!root && !module.list() && !module.transparent() && predicate(module))
    units->insert(&module);
  for (const auto& child : module.children())
    Matching(*child, false, predicate, units);
}

void ClassNames(const Module& module, std::set<std::string>* names) {
  if (!module.list() && !module.transparent())
    names->insert(module.class_name());
  for (const auto& child : module.children()) ClassNames(*child, names);
}

absl::Status ByClass(const Model& model, const ShardSpec& spec,
                     Modules* units) {
  std::set<std::string> known;
  ClassNames(model.root(), &known);
  if (spec.wrap_classes().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard.wrap_classes is empty, but shard.wrap_policy is "
                     "BY_CLASS: name at least one of ",
                     absl::StrJoin(known, ", ")));
  }
  for (const std::string& name : spec.wrap_classes()) {
    if (known.count(name) > 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("shard.wrap_classes has \"", name,
                     "\", but this model has no module of that class; it has ",
                     absl::StrJoin(known, ", ")));
  }
  Matching(
      model.root(), true,
      [&](const Module& module) {
        return std::find(spec.wrap_classes().begin(), spec.wrap_classes().end(),
                         module.class_name()) != spec.wrap_classes().end();
      },
      units);
  return absl::OkStatus();
}

absl::Status ByName(const Model& model, const ShardSpec& spec, Modules* units) {
  try {
    const std::regex pattern(spec.wrap_pattern());
    Matching(
        model.root(), true,
        [&](const Module& module) {
          return std::regex_match(module.name(), pattern);
        },
        units);
  } catch (const std::regex_error& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard.wrap_pattern \"", spec.wrap_pattern(),
                     "\" is not a regular expression: ", error.what()));
  }
  if (units->empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard.wrap_pattern \"", spec.wrap_pattern(),
        "\" matches no module name; it must match a whole name, for example \"",
        model.root().children().empty()
            ? ""
            : model.root().children().front()->name(),
        "\""));
  }
  return absl::OkStatus();
}

// Appends the units in registration order; returns the elements of the subtree.
void Collect(const Module& module, const Modules& units,
             std::vector<const Module*>* order) {
  if (units.count(&module) > 0) order->push_back(&module);
  for (const auto& child : module.children()) Collect(*child, units, order);
}

// Elements of units strictly inside `module`, not counting those inside such a
// unit twice.
int64_t Inside(const Module& module, const Modules& units,
               const Counts& counts) {
  int64_t n = 0;
  for (const auto& child : module.children()) {
    n += units.count(child.get()) > 0 ? counts.Of(*child)
                                      : Inside(*child, units, counts);
  }
  return n;
}

}  // namespace

absl::StatusOr<std::vector<UnitRoot>> SelectUnits(const Model& model,
                                                  const ShardSpec& spec) {
  const Counts counts(model.root());
  Modules units;
  switch (spec.wrap_policy()) {
    case BY_BLOCK:
      ByBlock(model.root(), true, &units);
      break;
    case SIZE_BASED: {
      if (spec.min_num_params() < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("shard.min_num_params is ", spec.min_num_params(),
                         "; it must be positive, or 0 for 100000000"));
      }
      SizeBased(model.root(), true,
                spec.min_num_params() == 0 ? 100000000 : spec.min_num_params(),
                counts, &units);
      break;
    }
    case BY_CLASS:
      SG_RETURN_IF_ERROR(ByClass(model, spec, &units));
      break;
    case BY_NAME:
      SG_RETURN_IF_ERROR(ByName(model, spec, &units));
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("shard.wrap_policy has the unknown value ",
                       static_cast<int>(spec.wrap_policy()),
                       "; use BY_BLOCK, SIZE_BASED, BY_CLASS or BY_NAME"));
  }
  units.erase(&model.root());
  std::vector<const Module*> order = {&model.root()};
  Collect(model.root(), units, &order);
  std::vector<UnitRoot> roots;
  for (const Module* module : order) {
    roots.push_back(
        {module, counts.Of(*module) - Inside(*module, units, counts)});
  }
  return roots;
}

}  // namespace shardgraph
