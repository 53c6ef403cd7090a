// Rank-ordered reductions and parallel copies: the arithmetic that every CPU
// communicator shares, so that all give the same bits.
#ifndef KERNELS_COLLECTIVE_REDUCTION_H_
#define KERNELS_COLLECTIVE_REDUCTION_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/collective/communicator.h"
#include "kernels/lane.h"
#include "kernels/tensor.h"

namespace shardgraph {

// True for the dtypes that can be reduced: F32, F64, I32, I64.
bool IsReducible(DType dtype);

// destinations[d][i] = ((sources[0][i] op sources[1][i]) op sources[2][i]) ...
// for i in [0, count) and every d, computed in `dtype`, which is reducible.
// Integer sums wrap. A maximum with a NaN is a NaN. A destination may be one of
// the sources; otherwise nothing overlaps. Uses the pool of `lane`, if any;
// allocates nothing.
void ReduceInRankOrder(absl::Span<const void* const> sources,
                       absl::Span<void* const> destinations, int64_t count,
                       DType dtype, ReduceOp op, Lane& lane);

// memcpy on the pool of `lane`, if any. Nothing happens when both are the same.
void CopyBytes(const void* source, void* destination, int64_t bytes,
               Lane& lane);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_REDUCTION_H_
