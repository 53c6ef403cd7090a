#include "fsdp/train/step_builder.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/shard/recompute_policy.h"
#include "fsdp/train/optimizer_nodes.h"
#include "fsdp/train/parameter_gather.h"
#include "fsdp/train/training_plan.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/passes.h"
#include "kernels/check.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

const TensorType kF64Scalar(DType::kF64, {});
const TensorType kF32Scalar(DType::kF32, {});
const TensorType kI32Scalar(DType::kI32, {});
const TensorType kI64Scalar(DType::kI64, {});
// loss_sum and token_count.
const TensorType kLossPair(DType::kF64, {2});

class StepBuilder {
 public:
  explicit StepBuilder(const StepRequest& request)
      : request_(request),
        config_(*request.config),
        layout_(*request.layout),
        world_(request.groups.world()),
        whole_(request.groups.whole_parameters && request.train),
        once_(request.train && world_ > 1 && config_.shard().reduce_once() &&
              MicroBatches(config_.data(), world_) > 1),
        rounds_(config_.precision().reduce() == BF16),
        builder_(&step_.graph) {
    step_.compute = ComputeDType(config_.precision().compute());
    step_.moments = ComputeDType(config_.precision().moments());
  }

  absl::StatusOr<StepGraph> Build() {
    SG_ASSIGN_OR_RETURN(recompute_,
                        RecomputePolicy::Create(config_.shard(), layout_));
    step_.graph.groups = {
        {kWorldGroup, world_, 1},
        {kShardGroup, request_.groups.shard, 1},
        {kReplicateGroup, request_.groups.replicate, request_.groups.shard}};
    if (request_.groups.reshard > 1 &&
        request_.groups.reshard < request_.groups.shard) {
      step_.graph.groups.push_back({kReshardGroup, request_.groups.reshard, 1});
    }
    AddPersistent();
    if (request_.train) {
      SG_RETURN_IF_ERROR(Micro("micro", /*last=*/!once_));
      if (once_) SG_RETURN_IF_ERROR(Micro(kLastMicroPhase, /*last=*/true));
      Update();
    }
    if (request_.evaluate) SG_RETURN_IF_ERROR(Evaluate());
    if (request_.generate) SG_RETURN_IF_ERROR(Generate());
    if (whole_) Gather();
    AddOutputs();
    return std::move(step_);
  }

 private:
  BufferId Persistent(const std::string& unit, absl::string_view what,
                      MemoryKind kind, DType dtype, int64_t numel,
                      Lifetime lifetime = Lifetime::kRun) {
    Buffer buffer;
    buffer.name = absl::StrCat(unit, "/", what);
    buffer.bytes = numel * SizeOf(dtype);
    buffer.lifetime = lifetime;
    buffer.kind = kind;
    return builder_.AddBuffer(std::move(buffer));
  }

  void AddPersistent() {
    step_.state = builder_.state_buffer();
    const int moments = NumMoments(config_.optimizer());
    for (const ShardUnit& unit : layout_.units()) {
      const int64_t n = unit.flat.shard_numel;
      unit_ids_.push_back(builder_.AddUnit(unit.name));
      UnitBuffers buffers;
      const bool trains = request_.train && unit.trainable;
      if (trains || step_.compute == DType::kF32) {
        buffers.master = Persistent(
            unit.name, "master", MemoryKind::kMasterParameter, DType::kF32, n);
      }
      if (step_.compute == DType::kF32) {
        buffers.compute = buffers.master;
      } else if (!whole_ || !trains) {
        buffers.compute =
            Persistent(unit.name, "compute", MemoryKind::kComputeParameter,
                       step_.compute, n);
      }
      if (whole_) {
        buffers.whole =
            Persistent(unit.name, "whole", MemoryKind::kComputeParameter,
                       step_.compute, unit.flat.padded_numel);
      }
      if (trains) {
        if (moments > 0)
          buffers.exp_avg =
              Persistent(unit.name, "exp_avg", MemoryKind::kOptimizerState,
                         step_.moments, n);
        if (moments > 1)
          buffers.exp_avg_sq =
              Persistent(unit.name, "exp_avg_sq", MemoryKind::kOptimizerState,
                         step_.moments, n);
        buffers.gradient =
            Persistent(unit.name, "gradient", MemoryKind::kGradientShard,
                       DType::kF32, n, Lifetime::kStep);
        buffers.accumulated = buffers.gradient;
        if (once_ && layout_.shards() > 1) {
          buffers.accumulated =
              Persistent(unit.name, "accumulated", MemoryKind::kGradient,
                         DType::kF32, unit.flat.padded_numel, Lifetime::kStep);
        }
      }
      forward_.push_back(whole_ ? buffers.whole : buffers.compute);
      step_.units.push_back(buffers);
    }
  }

  // A field of StepState as the nodes so far have left it.
  ValueId State(size_t offset, const TensorType& type) {
    return builder_.StateField(offset, type);
  }
  Placement StatePlace(size_t offset, const TensorType& type) {
    return Placement{step_.state, static_cast<int64_t>(offset), type};
  }

  ForwardOptions Forward(ForwardMode mode) const {
    ForwardOptions options;
    options.mode = mode;
    options.batch = config_.data().micro_batch_size();
    options.length = config_.data().sequence_length();
    options.compute = step_.compute;
    options.seed = config_.run().seed();
    options.documents = config_.data().mask_documents();
    if (mode == ForwardMode::kTrain) {
      options.label_smoothing = config_.loss().label_smoothing();
      options.z_loss = config_.loss().z_loss();
    }
    return options;
  }

  ParameterGather Source(bool backward = false) {
    return ParameterGather(&builder_, layout_, config_.shard(), request_.groups,
                           recompute_, step_.compute, forward_, whole_,
                           unit_ids_, backward);
  }

  // Adds a batch's (loss, tokens) to the step's.
  void AddLoss(ValueId stats) {
    builder_.SetScope("");
    builder_.SetUnit(kNone);
    builder_.Emit("accumulate",
                  {State(offsetof(StepState, loss_sum), kLossPair), stats,
                   State(offsetof(StepState, micro), kI64Scalar)});
  }

  void ReduceLoss() {
    if (world_ == 1) return;
    builder_.Emit("all_reduce",
                  {State(offsetof(StepState, loss_sum), kLossPair)},
                  Over(kWorldGroup, world_));
  }

  static Attributes Over(absl::string_view group, int size) {
    return Attributes().SetString(kGroupAttribute, group).SetInt("size", size);
  }

  absl::Status Micro(absl::string_view phase, bool last) {
    builder_.SetPhase(phase);
    builder_.SetDirection(Direction::kForward);
    ParameterGather source = Source(/*backward=*/true);
    SG_ASSIGN_OR_RETURN(
        const ForwardResult forward,
        request_.model->Emit(builder_, source, Forward(ForwardMode::kTrain)));
    const Recipes recipes = source.MarkRematerialized();
    AddLoss(forward.stats);

    DifferentiateOptions options;
    options.zero_unused = config_.optimizer().allow_unused();
    for (size_t i = 0; i < layout_.units().size(); ++i) {
      if (!layout_.units()[i].trainable) continue;
      const ParameterGather::Gathered& gathered = source.gathered()[i];
      if (gathered.whole == kNone) {
        if (!config_.optimizer().allow_unused()) {
          return absl::FailedPreconditionError(absl::StrCat(
              "no parameter of \"", layout_.units()[i].name,
              "\" is used by the model; freeze them, or set "
              "optimizer.allow_unused=true to train with zero gradients"));
        }
        ZeroGradient(i, last);
        continue;
      }
      options.leaves.push_back(
          {ComesReduced() ? gathered.shard : gathered.whole,
           [this, i, last](ValueId gradient) {
             ReduceGradient(i, gradient, last);
           }});
      GradientBase base;
      base.value = gathered.whole;
      base.dtype = DType::kF32;
      for (const FlatMember& member : layout_.units()[i].flat.members) {
        base.required.push_back(
            {member.parameter->name, member.offset, member.parameter->numel()});
      }
      options.bases.push_back(std::move(base));
    }
    SG_RETURN_IF_ERROR(Differentiate(builder_, options));
    return Rematerialize(step_.graph, builder_.phase(), recipes);
  }

  // Whether the gradient of a gathered parameter is that of its shard, reduced
  // over the shard group: the gradient of its all_gather.
  bool ComesReduced() const {
    return layout_.shards() > 1 && !whole_ && !once_ && !rounds_;
  }

  // The gradient of a unit that nothing uses: nothing to reduce.
  void ZeroGradient(int i, bool last) {
    const FlatParameter& flat = layout_.units()[i].flat;
    if (once_ && !last) return;
    builder_.SetScope(flat.name);
    builder_.SetUnit(unit_ids_[i]);
    builder_.Emit1("fill", {},
                   Attributes()
                       .SetInts("shape", {flat.shard_numel})
                       .SetString("dtype", DTypeName(DType::kF32)),
                   Placement{step_.units[i].gradient, 0,
                             TensorType(DType::kF32, {flat.shard_numel})});
  }

  // A unit's gradient goes into its shard, summed over all ranks.
  void ReduceGradient(int i, ValueId gradient, bool last) {
    const ShardGroups& groups = request_.groups;
    const FlatParameter& flat = layout_.units()[i].flat;
    const UnitBuffers& buffers = step_.units[i];
    const TensorType shard(DType::kF32, {flat.shard_numel});
    builder_.SetScope(flat.name);
    builder_.SetUnit(unit_ids_[i]);
    if (once_) {
      gradient = Accumulate(buffers.accumulated, gradient);
      if (!last) return;
    }
    // What the last sum over ranks yields.
    const auto sum = [&] {
      return once_ ? Placement{buffers.gradient, 0, shard} : Stage(flat, shard);
    };
    if (ComesReduced()) {
      Graph& graph = step_.graph;
      graph.buffers[graph.values[gradient].buffer].kind =
          MemoryKind::kReduceStage;
    } else if (groups.shard > 1) {
      gradient = ScatterSum(
          flat, gradient, kShardGroup, groups.shard,
          groups.replicate == 1 || !rounds_ ? sum() : Stage(flat, shard));
    }
    if (groups.replicate > 1 && !rounds_) {
      gradient = builder_.Emit1("all_reduce", {gradient},
                                Over(kReplicateGroup, groups.replicate));
    } else if (groups.replicate > 1) {
      const TensorType piece(DType::kF32,
                             {flat.shard_numel / groups.replicate});
      const ValueId mine = ScatterSum(flat, gradient, kReplicateGroup,
                                      groups.replicate, Stage(flat, piece));
      gradient = OnReduceLane(
          builder_.Emit1("all_gather", {mine},
                         Over(kReplicateGroup, groups.replicate), sum()));
    }
    if (!once_) Accumulate(buffers.gradient, gradient);
  }

  // The sum over the ranks of a group, of which each gets its piece. Where what
  // is sent is rounded, ranks exchange pieces and add them up themselves.
  ValueId ScatterSum(const FlatParameter& flat, ValueId whole,
                     absl::string_view group, int size, Placement sum) {
    if (!rounds_) {
      return builder_.Emit1("reduce_scatter", {whole}, Over(group, size), sum);
    }
    const TensorType rounded(DType::kBF16, builder_.type(whole).shape);
    const ValueId sent = OnReduceLane(
        builder_.Emit1("cast", {whole},
                       Attributes().SetString("dtype", DTypeName(DType::kBF16)),
                       Stage(flat, rounded)));
    const ValueId pieces = builder_.Emit1(
        "all_to_all", {sent}, Over(group, size), Stage(flat, rounded));
    return OnReduceLane(builder_.Emit1("sum_pieces", {pieces},
                                       Attributes().SetInt("size", size), sum));
  }

  Placement Stage(const FlatParameter& flat, const TensorType& type) {
    Buffer buffer;
    buffer.name = absl::StrCat(flat.name, "/stage");
    buffer.bytes = type.span_bytes();
    buffer.kind = MemoryKind::kReduceStage;
    return Placement{builder_.AddBuffer(std::move(buffer)), 0, type};
  }

  // Behind the reduction on its lane, so that compute does not wait for it.
  ValueId OnReduceLane(ValueId result) {
    Graph& graph = step_.graph;
    if (world_ > 1)
      graph.nodes[graph.values[result].producer].lane = LaneKind::kReduce;
    return result;
  }

  // Adds to what the micro-batches before have left.
  ValueId Accumulate(BufferId buffer, ValueId gradient) {
    const TensorType type = builder_.type(gradient);
    const ValueId before = builder_.External(buffer, type);
    return OnReduceLane(builder_.Emit1(
        "accumulate",
        {before, gradient, State(offsetof(StepState, micro), kI64Scalar)}));
  }

  void Update() {
    builder_.SetPhase("update");
    builder_.SetDirection(Direction::kUpdate);
    builder_.SetScope("");
    builder_.SetUnit(kNone);
    std::vector<int> trained;
    for (size_t i = 0; i < layout_.units().size(); ++i)
      if (layout_.units()[i].trainable) trained.push_back(static_cast<int>(i));
    const int64_t units = static_cast<int64_t>(trained.size());
    Buffer norms;
    norms.name = "gradient_sums";
    norms.bytes = units * SizeOf(DType::kF64);
    norms.kind = MemoryKind::kState;
    const BufferId sums = builder_.AddBuffer(std::move(norms));
    for (int64_t k = 0; k < units; ++k) {
      const int i = trained[k];
      const FlatParameter& flat = layout_.units()[i].flat;
      builder_.SetScope(flat.name);
      builder_.SetUnit(unit_ids_[i]);
      builder_.Emit1("sum_of_squares", {Shard(step_.units[i].gradient, i)},
                     SegmentsOf(flat),
                     Placement{sums, k * SizeOf(DType::kF64), kF64Scalar});
    }
    builder_.SetScope("");
    builder_.SetUnit(kNone);
    ValueId all = builder_.Current(sums, TensorType(DType::kF64, {units}), 0);
    if (layout_.shards() > 1) {
      all = builder_.Emit1("all_reduce", {all},
                           Over(kShardGroup, request_.groups.shard));
    }
    ReduceLoss();
    EmitFinish(builder_, config_, all);
    for (const int i : trained) {
      Optimize(i);
      if (whole_) GatherWhole(i);
    }
    builder_.SetScope("");
    builder_.SetUnit(kNone);
    EmitAdvance(builder_, config_, *request_.parameter_groups);
  }

  ValueId Shard(BufferId buffer, int unit, DType dtype = DType::kF32) {
    return builder_.Current(
        buffer, TensorType(dtype, {layout_.units()[unit].flat.shard_numel}), 0);
  }

  void Optimize(int i) {
    const FlatParameter& flat = layout_.units()[i].flat;
    builder_.SetScope(flat.name);
    builder_.SetUnit(unit_ids_[i]);
    EmitUpdate(builder_, config_, *request_.parameter_groups, flat,
               step_.units[i], step_.compute, step_.moments);
  }

  // The unit's whole parameters become what the masters are.
  void GatherWhole(int i) {
    const FlatParameter& flat = layout_.units()[i].flat;
    builder_.SetScope(flat.name);
    builder_.SetUnit(unit_ids_[i]);
    const UnitBuffers& buffers = step_.units[i];
    const bool rounds = buffers.compute == kNone;
    ValueId shard = rounds ? Shard(buffers.master, i)
                           : Shard(buffers.compute, i, step_.compute);
    if (rounds) {
      Buffer rounded;
      rounded.name = absl::StrCat(flat.name, "/rounded");
      rounded.bytes = flat.shard_numel * SizeOf(step_.compute);
      rounded.kind = MemoryKind::kComputeParameter;
      shard = builder_.Emit1(
          "cast", {shard},
          Attributes().SetString("dtype", DTypeName(step_.compute)),
          Placement{builder_.AddBuffer(std::move(rounded)), 0,
                    TensorType(step_.compute, {flat.shard_numel})});
    }
    builder_.Emit1("all_gather", {shard}, Over(kShardGroup, layout_.shards()),
                   Placement{step_.units[i].whole, 0,
                             TensorType(step_.compute, {flat.padded_numel})});
  }

  void Gather() {
    builder_.SetPhase(kGatherPhase);
    builder_.SetDirection(Direction::kUpdate);
    for (size_t i = 0; i < layout_.units().size(); ++i)
      GatherWhole(static_cast<int>(i));
  }

  absl::Status Evaluate() {
    builder_.SetPhase("eval");
    builder_.SetDirection(Direction::kForward);
    ParameterGather source = Source();
    SG_ASSIGN_OR_RETURN(const ForwardResult forward,
                        request_.model->Emit(builder_, source,
                                             Forward(ForwardMode::kEvaluate)));
    AddLoss(forward.stats);
    builder_.SetPhase("eval_reduce");
    if (world_ > 1) {
      ReduceLoss();
    }
    return absl::OkStatus();
  }

  absl::Status Generate() {
    const GenerateShape& shape = request_.generate_shape;
    for (const auto& [phase, length] :
         {std::pair<const char*, int64_t>{"prefill", shape.prefill_length},
          {"decode", int64_t{1}}}) {
      builder_.SetPhase(phase);
      builder_.SetDirection(Direction::kForward);
      ParameterGather source = Source();
      ForwardOptions options = Forward(ForwardMode::kGenerate);
      options.documents = false;
      options.batch = shape.batch;
      options.length = length;
      options.cache_length = shape.cache_length;
      options.input_prefix = absl::StrCat(phase, "/");
      SG_ASSIGN_OR_RETURN(const ForwardResult forward,
                          request_.model->Emit(builder_, source, options));
      step_.graph.outputs[absl::StrCat(phase, "/logits")] = forward.logits;
    }
    return absl::OkStatus();
  }

  // What the host reads after a run.
  void AddOutputs() {
    step_.graph.outputs["loss_pair"] = builder_.External(
        step_.state, kLossPair, offsetof(StepState, loss_sum));
    step_.graph.outputs["gradient_norm"] = builder_.External(
        step_.state, kF64Scalar, offsetof(StepState, gradient_norm));
  }

  const StepRequest& request_;
  const TrainConfig& config_;
  const ShardLayout& layout_;
  const int world_;
  const bool whole_;   // parameters are kept whole
  const bool once_;    // gradients are reduced with the last micro-batch only
  const bool rounds_;  // to BF16 what of gradients is sent
  RecomputePolicy recompute_;
  StepGraph step_;
  GraphBuilder builder_;
  std::vector<UnitId> unit_ids_;
  std::vector<BufferId> forward_;  // what forward starts from, by unit
};

}  // namespace

DType ComputeDType(Dtype dtype) {
  switch (dtype) {
    case FP32:
      return DType::kF32;
    case FP16:
      return DType::kF16;
    default:
      return DType::kBF16;
  }
}

absl::StatusOr<StepGraph> BuildStep(const StepRequest& request) {
  return StepBuilder(request).Build();
}

}  // namespace shardgraph
