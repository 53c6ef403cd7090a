#include "kernels/loss/loss_row.h"

#include <cstdint>

#include "kernels/cpu/vector_math.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

template <typename T>
LogSum RowLogSumExp(const T* z, int64_t n) {
  const float max = VectorMax(z, n);
  if (max == -__builtin_inff()) return {max, 0};
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l)
      lanes[l] += VectorExp(LoadFloat(z[i + l]) - max);
  }
  for (; i < n; ++i) lanes[0] += VectorExp(LoadFloat(z[i]) - max);
  return {max, __builtin_logf(SumOfLanes(lanes))};
}

template <typename T>
void RowScaledSoftmax(T* z, int64_t n, LogSum sum, float scale) {
  for (int64_t i = 0; i < n; ++i)
    StoreFloat(VectorExp(LoadFloat(z[i]) - sum.max - sum.log_sum) * scale,
               z + i);
}

}  // namespace

LogSum LogSumExp(const void* logits, bool bf16, int64_t n) {
  return bf16 ? RowLogSumExp(static_cast<const uint16_t*>(logits), n)
              : RowLogSumExp(static_cast<const float*>(logits), n);
}

void ScaledSoftmax(void* logits, bool bf16, int64_t n, LogSum sum,
                   float scale) {
  if (bf16) {
    RowScaledSoftmax(static_cast<uint16_t*>(logits), n, sum, scale);
  } else {
    RowScaledSoftmax(static_cast<float*>(logits), n, sum, scale);
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
