#include "fsdp/train/parameter_gather.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shardgraph {

ParameterGather::ParameterGather(
    GraphBuilder* builder, const ShardLayout& layout, const ShardSpec& spec,
    const ShardGroups& groups, const RecomputePolicy& recompute, DType dtype,
    const std::vector<BufferId>& parameters, bool whole,
    const std::vector<UnitId>& units, bool backward)
    : builder_(builder),
      layout_(layout),
      recompute_(recompute),
      dtype_(dtype),
      parameters_(parameters),
      gathers_(!whole && layout.shards() > 1),
      reshards_(gathers_ && spec.reshard_after_forward() &&
                MayReshard(spec.strategy()) && groups.reshard > 1),
      kept_by_(backward && reshards_ && groups.reshard < groups.shard
                   ? groups.reshard
                   : 0),
      unit_ids_(units),
      gathered_(layout.units().size()) {}

ValueId ParameterGather::Whole(int unit) {
  Gathered& gathered = gathered_[unit];
  gathered.last_use = static_cast<NodeId>(builder_->graph().nodes.size());
  if (gathered.whole != kNone) return gathered.whole;

  const FlatParameter& flat = layout_.units()[unit].flat;
  gathered.shard = builder_->External(
      parameters_[unit],
      TensorType(dtype_, {gathers_ ? flat.shard_numel : flat.padded_numel}));
  if (!gathers_) {
    gathered.whole = gathered.shard;
    return gathered.whole;
  }
  const std::string scope(builder_->scope());
  const UnitId around = builder_->unit();
  builder_->SetScope(flat.name);
  builder_->SetUnit(unit_ids_[unit]);
  Buffer buffer;
  buffer.name = absl::StrCat(flat.name, "/gathered");
  buffer.bytes = flat.padded_numel * SizeOf(dtype_);
  buffer.kind = MemoryKind::kGatheredParameter;
  const Placement placement{builder_->AddBuffer(std::move(buffer)), 0,
                            TensorType(dtype_, {flat.padded_numel})};
  gathered.whole = builder_->Emit1("all_gather", {gathered.shard},
                                   Attributes()
                                       .SetString(kGroupAttribute, kShardGroup)
                                       .SetInt("size", layout_.shards()),
                                   placement);
  if (kept_by_ > 0) KeepPiece(flat, gathered.whole);
  builder_->SetScope(scope);
  builder_->SetUnit(around);
  return gathered.whole;
}

// Right behind the gather, on its lane: compute does not wait. Lower drops what
// backward does not gather again.
void ParameterGather::KeepPiece(const FlatParameter& flat, ValueId whole) {
  const Attributes group = Attributes()
                               .SetString(kGroupAttribute, kReshardGroup)
                               .SetInt("size", kept_by_);
  const TensorType piece(dtype_, {flat.padded_numel / kept_by_});
  Buffer buffer;
  buffer.name = absl::StrCat(flat.name, "/kept");
  buffer.bytes = piece.span_bytes();
  buffer.kind = MemoryKind::kComputeParameter;
  const ValueId kept = builder_->Emit1(
      "take_shard", {whole}, group,
      Placement{builder_->AddBuffer(std::move(buffer)), 0, piece});
  Graph& graph = builder_->graph();
  graph.nodes[graph.values[kept].producer].lane = LaneKind::kGather;
  recipes_.emplace(graph.values[whole].buffer,
                   Recipe{"all_gather", {kept}, group});
}

ValueId ParameterGather::Get(const Parameter& parameter) {
  const ShardLayout::Place place = layout_.PlaceOf(parameter);
  const FlatMember& member =
      layout_.units()[place.unit].flat.members[place.member];
  return builder_->View(Whole(place.unit), member.offset, parameter.shape,
                        ContiguousStrides(parameter.shape));
}

std::optional<ValueId> ParameterGather::GetStacked(
    absl::Span<const Parameter* const> parameters) {
  const ShardLayout::Place first = layout_.PlaceOf(*parameters[0]);
  const FlatParameter& flat = layout_.units()[first.unit].flat;
  Dims shape = parameters[0]->shape;
  shape[0] = 0;
  int64_t end = flat.members[first.member].offset;
  for (const Parameter* parameter : parameters) {
    const ShardLayout::Place place = layout_.PlaceOf(*parameter);
    if (place.unit != first.unit || flat.members[place.member].offset != end)
      return std::nullopt;
    SG_CHECK(std::equal(shape.begin() + 1, shape.end(),
                        parameter->shape.begin() + 1, parameter->shape.end()))
        << parameter->name << " cannot be stacked";
    shape[0] += parameter->shape[0];
    end += parameter->numel();
  }
  return builder_->View(Whole(first.unit), flat.members[first.member].offset,
                        shape, ContiguousStrides(shape));
}

void ParameterGather::Enter(const Module& module) {
  if (module.feed_forward())
    feed_forwards_.emplace_back(builder_->graph().nodes.size(), 0);
  const int unit = layout_.UnitAround(module);
  if (unit < 0 || layout_.units()[unit].module != &module) return;
  open_.push_back({unit, builder_->graph().nodes.size()});
  builder_->SetUnit(unit_ids_[unit]);
}

void ParameterGather::Exit(const Module& module, ValueId output) {
  // There are none within one another.
  if (module.feed_forward())
    feed_forwards_.back().second = builder_->graph().nodes.size();
  if (open_.empty() || layout_.units()[open_.back().unit].module != &module)
    return;
  const OpenUnit unit = open_.back();
  open_.pop_back();
  spans_.push_back(
      {unit.unit, unit.first_node, builder_->graph().nodes.size(),
       output == kNone ? kNone : builder_->graph().values[output].buffer});
  builder_->SetUnit(open_.empty() ? kNone : unit_ids_[open_.back().unit]);
}

Recipes ParameterGather::MarkRematerialized() {
  Graph& graph = builder_->graph();
  if (reshards_) {
    const auto last =
        std::max_element(gathered_.begin(), gathered_.end(),
                         [](const Gathered& a, const Gathered& b) {
                           return a.last_use < b.last_use;
                         });
    for (const Gathered& gathered : gathered_) {
      if (gathered.whole == kNone || gathered.whole == last->whole) continue;
      graph.buffers[graph.values[gathered.whole].buffer].rematerialize = true;
    }
  }
  if (recompute_.any()) MarkActivations();
  return recipes_;
}

void ParameterGather::MarkActivations() {
  Graph& graph = builder_->graph();
  std::vector<bool> in_feed_forward(graph.nodes.size()),
      seen(graph.nodes.size());
  for (const auto& [begin, end] : feed_forwards_)
    std::fill_n(in_feed_forward.begin() + begin, end - begin, true);
  // What leaves a unit is kept: it is what recomputation starts from.
  std::set<BufferId> kept;
  for (const Span& span : spans_) kept.insert(span.output);
  for (const Span& span : spans_) {
    for (size_t i = span.begin; i < span.end; ++i) {
      if (seen[i]) continue;  // of a unit within
      seen[i] = true;
      const Node& node = graph.nodes[i];
      if (!recompute_.Recomputes(span.unit, node.op->name, in_feed_forward[i]))
        continue;
      for (ValueId result : node.results) {
        Buffer& buffer = graph.buffers[graph.values[result].buffer];
        if (buffer.kind == MemoryKind::kActivation &&
            buffer.lifetime == Lifetime::kPhase &&
            kept.count(graph.values[result].buffer) == 0) {
          buffer.rematerialize = true;
        }
      }
    }
  }
}

}  // namespace shardgraph
