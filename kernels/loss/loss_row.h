// What the output head does to one row of logits, compiled for each CPU target.
//
// `logits` holds n elements, FP32 or BF16. Plain structs only
// (kernels/cpu/target.h says why).
#ifndef KERNELS_LOSS_LOSS_ROW_H_
#define KERNELS_LOSS_LOSS_ROW_H_

#include <cstdint>

namespace shardgraph {

// The log of the sum of exp(logits) is max + log_sum. Kept apart: one FP32
// number would lose the digits of log_sum that a large max takes up.
struct LogSum {
  float max = 0;      // the largest logit
  float log_sum = 0;  // log of the sum of exp(logits - max)
};

using LogSumExpFunction = LogSum(const void* logits, bool bf16, int64_t n);
// The sum of logits - max.
using SumBelowFunction = float(const void* logits, bool bf16, int64_t n,
                               float max);
// logits = exp(logits - max - log_sum) * scale + shift, rounded.
using ScaledSoftmaxFunction = void(void* logits, bool bf16, int64_t n,
                                   LogSum sum, float scale, float shift);

namespace baseline {
LogSumExpFunction LogSumExp;
SumBelowFunction SumBelow;
ScaledSoftmaxFunction ScaledSoftmax;
}  // namespace baseline
namespace avx2 {
LogSumExpFunction LogSumExp;
SumBelowFunction SumBelow;
ScaledSoftmaxFunction ScaledSoftmax;
}  // namespace avx2
namespace avx512 {
LogSumExpFunction LogSumExp;
SumBelowFunction SumBelow;
ScaledSoftmaxFunction ScaledSoftmax;
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_LOSS_LOSS_ROW_H_
