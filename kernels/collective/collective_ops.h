// The collectives as ops. Attributes of all: group (name of the group of the
// mesh), size (its number of ranks, at least 1).
//
// all_gather(shard[n]) -> full[size * n]
//   Rank r's shard at r * n, on the gather lane. Any dtype.
// reduce_scatter(full[size * n]) -> shard[n]
//   The sum over ranks of this rank's piece, on the reduce lane. F32 or F64.
// all_reduce(x) -> x
//   In place, any shape, on the reduce lane. Attribute reduce: "sum" (default)
//   or "max". F32, F64, I32 or I64.
// all_to_all(x[size * n]) -> [size * n]
//   Piece s of rank r arrives at s as piece r, on the reduce lane. Any dtype.
//
// Sums are in rank order (communicator.h). The shard of all_gather or
// reduce_scatter may lie in its piece of `full`. The kernels call
// KernelContext::communicator and are the same for every backend.
#ifndef KERNELS_COLLECTIVE_COLLECTIVE_OPS_H_
#define KERNELS_COLLECTIVE_COLLECTIVE_OPS_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> CollectiveOps();
absl::Span<const KernelDef> CollectiveKernels();

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_COLLECTIVE_OPS_H_
