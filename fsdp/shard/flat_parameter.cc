#include "fsdp/shard/flat_parameter.h"

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Units around a module, outermost first, as indices into the unit roots.
using Path = std::vector<int>;

class Owners {
 public:
  Owners(const Module& root, const std::vector<UnitRoot>& units) {
    for (size_t i = 0; i < units.size(); ++i)
      index_[units[i].module] = static_cast<int>(i);
    Path path;
    Visit(root, &path);
  }

  // Lowest unit around all owners of the parameter.
  int UnitOf(const Parameter* parameter) const {
    return holder_.at(parameter).back();
  }
  const Path& PathOf(const Module* module) const { return paths_.at(module); }
  const std::map<const Module*, Path>& paths() const { return paths_; }

 private:
  void Visit(const Module& module, Path* path) {
    const auto unit = index_.find(&module);
    if (unit != index_.end()) path->push_back(unit->second);
    paths_[&module] = *path;
    for (const Parameter* parameter : module.parameters()) {
      const auto [it, first] = holder_.emplace(parameter, *path);
      if (first) continue;
      size_t common = 0;
      while (common < it->second.size() && common < path->size() &&
             it->second[common] == (*path)[common])
        ++common;
      it->second.resize(common);
    }
    for (const auto& child : module.children()) Visit(*child, path);
    if (unit != index_.end()) path->pop_back();
  }

  std::map<const Module*, int> index_;
  std::map<const Parameter*, Path> holder_;
  std::map<const Module*, Path> paths_;
};

// Appends the parameters as one block.
void AppendBlock(const std::vector<const Parameter*>& parameters,
                 const ParameterGroups& groups, FlatParameter* flat) {
  int64_t end = RoundUp(flat->padded_numel, kBlockAlignment);
  for (const Parameter* parameter : parameters) {
    flat->members.push_back({parameter, end});
    const int32_t group = groups.Of(*parameter);
    if (!flat->segments.empty() && flat->segments.back().end == end &&
        flat->segments.back().group == group) {
      flat->segments.back().end += parameter->numel();
    } else {
      flat->segments.push_back({end, end + parameter->numel(), group});
    }
    end += parameter->numel();
    flat->numel += parameter->numel();
  }
  flat->padded_numel = end;
}

}  // namespace

std::vector<int64_t> FlatParameter::SegmentAttribute() const {
  std::vector<int64_t> triples;
  for (const FlatSegment& segment : segments) {
    triples.insert(triples.end(), {segment.begin, segment.end, segment.group});
  }
  return triples;
}

std::vector<MemberPiece> FlatParameter::PiecesOf(int index) const {
  const int64_t begin = index * shard_numel, end = begin + shard_numel;
  std::vector<MemberPiece> pieces;
  for (size_t m = 0; m < members.size(); ++m) {
    const int64_t from = std::max(begin, members[m].offset);
    const int64_t to =
        std::min(end, members[m].offset + members[m].parameter->numel());
    if (from < to)
      pieces.push_back({static_cast<int>(m), from - members[m].offset,
                        from - begin, to - from});
  }
  return pieces;
}

absl::StatusOr<ShardLayout> MakeLayout(const Model& model,
                                       const ShardSpec& spec, int shards,
                                       const ParameterGroups& groups,
                                       int pieces) {
  if (shards < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("cannot cut parameters into ", shards, " shards"));
  SG_ASSIGN_OR_RETURN(const std::vector<UnitRoot> roots,
                      SelectUnits(model, spec));
  const Owners owners(model.root(), roots);

  std::map<const Parameter*, const std::vector<const Parameter*>*> stack_of;
  for (const auto& stack : model.stacks()) {
    const bool together = std::all_of(
        stack.begin(), stack.end(), [&](const Parameter* parameter) {
          return owners.UnitOf(parameter) == owners.UnitOf(stack[0]) &&
                 groups.Of(*parameter) == groups.Of(*stack[0]);
        });
    if (!together) continue;
    for (const Parameter* parameter : stack) stack_of[parameter] = &stack;
  }

  // Of each root what is trained, and what is not.
  std::vector<std::array<FlatParameter, 2>> flats(roots.size());
  std::set<const Parameter*> placed;
  for (const Parameter* parameter : model.parameters()) {
    if (placed.count(parameter) > 0) continue;
    const auto stack = stack_of.find(parameter);
    const std::vector<const Parameter*> block =
        stack == stack_of.end() ? std::vector<const Parameter*>{parameter}
                                : *stack->second;
    placed.insert(block.begin(), block.end());
    const bool frozen = groups.Of(*parameter) == kFrozenGroup;
    AppendBlock(block, groups, &flats[owners.UnitOf(parameter)][frozen]);
  }

  ShardLayout layout;
  layout.shards_ = shards;
  std::vector<int> kept(roots.size(), -1);
  for (size_t i = 0; i < roots.size(); ++i) {
    for (const bool frozen : {false, true}) {
      FlatParameter& flat = flats[i][frozen];
      if (flat.members.empty()) continue;
      flat.name = roots[i].module->name();
      if (frozen)
        absl::StrAppend(&flat.name, flat.name.empty() ? "" : ".", "frozen");
      const int64_t alignment = pieces * kBlockAlignment;
      flat.shard_numel =
          RoundUp(flat.padded_numel, shards * alignment) / shards;
      flat.padded_numel = flat.shard_numel * shards;
      const int unit = static_cast<int>(layout.units_.size());
      if (kept[i] < 0) kept[i] = unit;
      for (size_t m = 0; m < flat.members.size(); ++m) {
        layout.places_[flat.members[m].parameter] = {unit, static_cast<int>(m)};
      }
      layout.units_.push_back(
          {roots[i].module, flat.name, !frozen, std::move(flat)});
    }
  }
  for (const auto& [module, path] : owners.paths()) {
    int around = -1;
    for (int unit : path) {
      if (kept[unit] >= 0) around = kept[unit];
    }
    layout.around_[module] = around;
  }
  return layout;
}

}  // namespace shardgraph
