// The nodes of the optimizer: a unit's update, and what counts updates.
#ifndef FSDP_TRAIN_OPTIMIZER_NODES_H_
#define FSDP_TRAIN_OPTIMIZER_NODES_H_

#include "fsdp/shard/flat_parameter.h"
#include "fsdp/shard/parameter_groups.h"
#include "fsdp/train/step_builder.h"
#include "graph/builder.h"
#include "kernels/tensor.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Moments of each parameter: exp_avg and exp_avg_sq, or exp_avg alone (of SGD
// its momentum buffer), or none.
int NumMoments(const OptimizerSpec& spec);

// "segments" and "group" of optimizer ops on a flat parameter's shards.
Attributes SegmentsOf(const FlatParameter& flat);

// Updates a unit's shards by its gradient, in the builder's scope and unit.
// `compute`, `moments`: dtypes of those shards.
void EmitUpdate(GraphBuilder& builder, const TrainConfig& config,
                const ParameterGroups& groups, const FlatParameter& flat,
                const UnitBuffers& buffers, DType compute, DType moments);

// From the sums of squares over the ranks: the norm, what updates multiply by,
// and whether there are any.
void EmitFinish(GraphBuilder& builder, const TrainConfig& config, ValueId sums);

// After all updates: one more optimizer step, unless it was skipped; the next
// loss scale.
void EmitAdvance(GraphBuilder& builder, const TrainConfig& config,
                 const ParameterGroups& groups);

}  // namespace shardgraph

#endif  // FSDP_TRAIN_OPTIMIZER_NODES_H_
