// ParameterGather: the ParameterSource of sharded training. Gathers a unit's
// flat parameter where it is first used and hands out views of it.
#ifndef FSDP_TRAIN_PARAMETER_GATHER_H_
#define FSDP_TRAIN_PARAMETER_GATHER_H_

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/shard/flat_parameter.h"
#include "fsdp/shard/recompute_policy.h"
#include "fsdp/shard/strategy.h"
#include "graph/builder.h"
#include "graph/model/module.h"
#include "graph/passes.h"
#include "proto/shard.pb.h"

namespace shardgraph {

inline constexpr char kShardGroup[] = "shard";
inline constexpr char kReplicateGroup[] = "replicate";
inline constexpr char kWorldGroup[] = "world";
// There only where it is neither one rank nor the shard group.
inline constexpr char kReshardGroup[] = "reshard";

class ParameterGather final : public ParameterSource {
 public:
  // `parameters`: by unit, the buffer of its compute shard, or of the whole
  // flat parameter if `whole`: nothing is gathered then. `units`: graph unit of
  // each. `backward`: whether one follows, for which pieces of reshard groups
  // are kept. All outlive this object, which serves one forward pass of the
  // builder's current phase.
  ParameterGather(GraphBuilder* builder, const ShardLayout& layout,
                  const ShardSpec& spec, const ShardGroups& groups,
                  const RecomputePolicy& recompute, DType dtype,
                  const std::vector<BufferId>& parameters, bool whole,
                  const std::vector<UnitId>& units, bool backward);

  ValueId Get(const Parameter& parameter) override;
  std::optional<ValueId> GetStacked(
      absl::Span<const Parameter* const> parameters) override;
  void Enter(const Module& module) override;
  void Exit(const Module& module, ValueId output) override;

  // What was gathered: the shard and the whole flat parameter of unit i, the
  // same value where nothing is gathered; kNone when it was not used.
  struct Gathered {
    ValueId shard = kNone;
    ValueId whole = kNone;
    NodeId last_use =
        kNone;  // lower bound: the node count when it was last asked for
  };
  const std::vector<Gathered>& gathered() const { return gathered_; }

  // Call when forward is emitted. Marks what backward makes again: gathered
  // parameters (but of the unit used last, which backward needs at once) and,
  // by the policy, activations inside units. Returns what gathers are made
  // again by, where not by themselves.
  Recipes MarkRematerialized();

 private:
  struct OpenUnit {
    int unit;
    size_t first_node;
  };
  struct Span {
    int unit;
    size_t begin, end;  // nodes
    BufferId output;
  };

  ValueId Whole(int unit);
  void KeepPiece(const FlatParameter& flat, ValueId whole);
  // A buffer that a node of such a unit writes, if it is to be made again.
  void MarkActivations();

  GraphBuilder* builder_;
  const ShardLayout& layout_;
  const RecomputePolicy& recompute_;
  DType dtype_;
  const std::vector<BufferId>& parameters_;
  const bool gathers_;
  const bool reshards_;  // gathered parameters are given up after forward
  const int kept_by_;    // ranks that keep a whole in pieces; 0: none do
  const std::vector<UnitId>& unit_ids_;
  std::vector<Gathered> gathered_;
  Recipes recipes_;  // from what is kept
  std::vector<OpenUnit> open_;
  std::vector<Span> spans_;  // of finished units, inner ones first
  // Nodes of feed-forward modules, from and to.
  std::vector<std::pair<size_t, size_t>> feed_forwards_;
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_PARAMETER_GATHER_H_
