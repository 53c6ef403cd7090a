// Dropout, keyed so that neither the thread count nor the world size nor
// recomputation changes what is dropped.
//
// dropout(x[B, E], sequence_ids I64[B], run_step I64 scalar) -> y[B, E]
//   Attributes: rate (double in [0, 1), required), seed (int), key (int:
//   HashName of module name and call site).
//   y[b, e] = DropoutKeeps(MakeRandomKey(seed, key, run_step, sequence_ids[b]),
//   e, DropoutThreshold(rate)) ? x[b, e] / (1 - rate) : 0; the factor
//   1 / (1 - rate) is rounded to FP32 (FP64 for F64), the product once to x's
//   dtype. Its gradient is the op itself applied to dy.
#ifndef KERNELS_RANDOM_DROPOUT_H_
#define KERNELS_RANDOM_DROPOUT_H_

#include "absl/types/span.h"
#include "kernels/kernel.h"
#include "kernels/op.h"

namespace shardgraph {

absl::Span<const OpDef* const> RandomOps();
absl::Span<const KernelDef> RandomReferenceKernels();
absl::Span<const KernelDef> RandomCpuKernels();
absl::Span<const KernelDef> RandomCudaKernels();

}  // namespace shardgraph

#endif  // KERNELS_RANDOM_DROPOUT_H_
