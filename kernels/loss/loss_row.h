// What the output head does to one row of logits, compiled for each CPU target.
//
// `logits` holds n elements, FP32 or BF16. Plain structs only
// (kernels/cpu/target.h says why).
#ifndef KERNELS_LOSS_LOSS_ROW_H_
#define KERNELS_LOSS_LOSS_ROW_H_

#include <cstdint>

namespace shardgraph {

// log of the sum of exp(logits); -infinity when n is 0.
using LogSumExpFunction = float(const void* logits, bool bf16, int64_t n);
// logits = exp(logits - lse) * scale, rounded.
using ScaledSoftmaxFunction = void(void* logits, bool bf16, int64_t n,
                                   float lse, float scale);

namespace baseline {
LogSumExpFunction LogSumExp;
ScaledSoftmaxFunction ScaledSoftmax;
}  // namespace baseline
namespace avx2 {
LogSumExpFunction LogSumExp;
ScaledSoftmaxFunction ScaledSoftmax;
}  // namespace avx2
namespace avx512 {
LogSumExpFunction LogSumExp;
ScaledSoftmaxFunction ScaledSoftmax;
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_LOSS_LOSS_ROW_H_
