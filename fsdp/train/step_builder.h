// BuildStep: the graph of a training step (and of evaluation and generation) on
// sharded parameters.
//
// FSDP is (a) a layout, (b) an all-gather whose gradient is a reduce-scatter,
// (c) a schedule. This file does (b): each unit's parameters are gathered where
// forward first uses them, backward gathers again what is resharded, gradients
// are reduced where the last contribution is in. Strategies are values of
// ShardGroups and of the rematerialise flag.
//
// Phases:
// - micro: forward, backward, reduction into the gradient shards; once per
//   micro-batch. With ShardSpec::reduce_once gradients only add up here, and
//   micro@last, in place of micro for the last micro-batch, reduces them.
// - update: norm, clip, optimizer, and the gathering of parameters that are
//   kept whole; once per step.
// - eval: forward, loss; once per held-out batch (StepState::micro counts
//   them).
// - eval_reduce: the sums of loss and tokens over ranks; once after eval.
// - prefill, decode: forward with KV caches.
// - gather: parameters that are kept whole become what the shards hold; after
//   the shards have been written from outside.
#ifndef FSDP_TRAIN_STEP_BUILDER_H_
#define FSDP_TRAIN_STEP_BUILDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/shard/flat_parameter.h"
#include "fsdp/shard/strategy.h"
#include "graph/graph.h"
#include "graph/model/module.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Name of the phase that gathers; there only where parameters are kept whole.
inline constexpr char kGatherPhase[] = "gather";
// Of the phase for the last micro-batch; there only where it differs.
inline constexpr char kLastMicroPhase[] = "micro@last";

struct GenerateShape {
  int64_t batch = 1;
  int64_t prefill_length = 64;  // tokens of one prefill run
  int64_t cache_length = 1024;
};

struct StepRequest {
  const Model* model = nullptr;
  const ShardLayout* layout = nullptr;
  ShardGroups groups;
  const ParameterGroups* parameter_groups = nullptr;
  // Resolved: every optional field is set (fsdp/config/train_config.h).
  const TrainConfig* config = nullptr;
  bool train = true;     // micro and update
  bool evaluate = true;  // eval and eval_reduce
  bool generate = false;
  GenerateShape generate_shape;
};

// The persistent buffers of one flat parameter. kNone: not there. Of frozen
// parameters there are no others than master, compute and whole.
struct UnitBuffers {
  // F32[shard_numel]; of frozen parameters only where it is what computes.
  BufferId master = kNone;
  // Compute dtype [shard_numel]; the master itself in FP32; none of what is
  // trained with whole parameters.
  BufferId compute = kNone;
  BufferId whole =
      kNone;  // compute dtype [padded_numel], with whole parameters
  // Moments, of SGD and LION in exp_avg alone; StepGraph::moments.
  BufferId exp_avg = kNone;
  BufferId exp_avg_sq = kNone;
  BufferId gradient = kNone;  // F32, step lifetime
  // Where gradients that are reduced once add up: F32 [padded_numel], step
  // lifetime; `gradient` itself with one shard.
  BufferId accumulated = kNone;
};

struct StepGraph {
  Graph graph;
  std::vector<UnitBuffers> units;  // as ShardLayout::units
  DType compute = DType::kBF16;
  DType moments = DType::kF32;
  BufferId state = kNone;  // StepState
};

absl::StatusOr<StepGraph> BuildStep(const StepRequest& request);

// The dtype of a field of PrecisionSpec.
DType ComputeDType(Dtype dtype);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_STEP_BUILDER_H_
