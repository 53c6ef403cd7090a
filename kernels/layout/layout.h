// Ops that only place values: constants, the key/value cache, pieces.
//
// fill() -> tensor
//   Attributes: shape (ints, required), dtype (a DTypeName, required), value
//   (double, default 0; for integer dtypes it must be an integer). Every
//   element is `value`, rounded once. The result may be strided: what lies
//   between its elements is kept.
//
// kv_write(cache[B, S, K, D], new[B, T, K, D], position I64 scalar) -> cache
//   In place: rows position .. position + T - 1 of every sequence become those
//   of `new`; rows that would lie outside [0, S) are dropped. Same floating
//   dtype; `new` may be strided.
//
// take_shard(full[size * n]) -> shard[n]
//   Attributes: group (a group of the mesh), size (its ranks, at least 1). The
//   piece of this rank, member r of the group: elements r * n .. r * n + n - 1,
//   as reduce_scatter and all_gather have it. Any dtype.
#ifndef KERNELS_LAYOUT_LAYOUT_H_
#define KERNELS_LAYOUT_LAYOUT_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> LayoutOps();
absl::Span<const KernelDef> LayoutReferenceKernels();
absl::Span<const KernelDef> LayoutCpuKernels();
absl::Span<const KernelDef> LayoutCudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_LAYOUT_LAYOUT_H_
