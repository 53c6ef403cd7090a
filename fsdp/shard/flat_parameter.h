// FlatParameter: one buffer that holds the parameters of a unit back to back,
// and how it is cut into shards. The only place with shard arithmetic.
//
// Layout of a flat parameter, in elements: blocks in registration order, each
// starting at a multiple of kBlockAlignment. A block is one parameter, or the
// parameters of a stack (Model::stacks: q, k, v; gate, up) back to back without
// gaps, so that one product serves them. The end is padded to a multiple of
// shards x pieces x kBlockAlignment (pieces: MakeLayout): every rank's shard
// has the same size; trailing shards may be padding only. Nothing reads a gap
// as data.
#ifndef FSDP_SHARD_FLAT_PARAMETER_H_
#define FSDP_SHARD_FLAT_PARAMETER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/shard/parameter_groups.h"
#include "fsdp/shard/wrap_policy.h"
#include "graph/model/module.h"

namespace shardgraph {

// 128 bytes of BF16.
inline constexpr int64_t kBlockAlignment = 64;

struct FlatMember {
  const Parameter* parameter = nullptr;
  int64_t offset = 0;  // elements from the start of the flat parameter
};

// A range of one optimizer group, in elements of the flat parameter. Segments
// are sorted and disjoint; what is between them is padding.
struct FlatSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t group = 0;
};

// Part of a member that one shard holds.
struct MemberPiece {
  int member = 0;            // index into FlatParameter::members
  int64_t member_begin = 0;  // elements of the member
  int64_t shard_begin = 0;   // elements of the shard
  int64_t elements = 0;
};

struct FlatParameter {
  std::string name;  // the unit's module name
  std::vector<FlatMember> members;
  std::vector<FlatSegment> segments;
  int64_t numel = 0;         // elements of the members
  int64_t padded_numel = 0;  // shards x shard_numel
  int64_t shard_numel = 0;

  // (begin, end, group) triples: the `segments` attribute of optimizer ops.
  std::vector<int64_t> SegmentAttribute() const;
  // What shard `index` holds, in order; empty for a shard of padding only.
  std::vector<MemberPiece> PiecesOf(int index) const;
};

struct ShardUnit {
  const Module* module = nullptr;
  std::string name;  // module name; "" is the root; ends in "frozen" if frozen
  bool trainable = true;
  FlatParameter flat;
};

// How a model is cut: units and their flat parameters. Units without parameters
// are left out (the root is last resort of what no other unit holds). A module
// of which some parameters are trained and others not makes two units.
class ShardLayout {
 public:
  struct Place {
    int unit = 0;
    int member = 0;
  };

  const std::vector<ShardUnit>& units() const { return units_; }
  // Number of shards each flat parameter is cut into.
  int shards() const { return shards_; }
  Place PlaceOf(const Parameter& parameter) const {
    return places_.at(&parameter);
  }
  // Index of the innermost unit around the module, the trained one of two; -1
  // if none has parameters.
  int UnitAround(const Module& module) const { return around_.at(&module); }

 private:
  friend absl::StatusOr<ShardLayout> MakeLayout(const Model& model,
                                                const ShardSpec& spec,
                                                int shards,
                                                const ParameterGroups& groups,
                                                int pieces);

  std::vector<ShardUnit> units_;
  int shards_ = 1;
  std::map<const Parameter*, Place> places_;
  std::map<const Module*, int> around_;
};

// A parameter belongs to the lowest unit around all modules that own it. Each
// shard can be cut into `pieces` equal parts of whole blocks. `model` outlives
// the layout.
absl::StatusOr<ShardLayout> MakeLayout(const Model& model,
                                       const ShardSpec& spec, int shards,
                                       const ParameterGroups& groups = {},
                                       int pieces = 1);

}  // namespace shardgraph

#endif  // FSDP_SHARD_FLAT_PARAMETER_H_
