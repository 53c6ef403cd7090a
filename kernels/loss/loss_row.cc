#include "kernels/loss/loss_row.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

const float kMinusInfinity = -__builtin_inff();

// Passes over NaN.
template <typename T>
float MaxOfRow(const T* z, int64_t n) {
  Vector max[4];
  for (Vector& part : max) part = Broadcast(kMinusInfinity);
  int64_t i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k)
      max[k] = Max(LoadVector(z + i + k * kWidth), max[k]);
  }
  const Vector all = Max(Max(max[0], max[1]), Max(max[2], max[3]));
  float largest = kMinusInfinity;
  for (int l = 0; l < kWidth; ++l)
    largest = all[l] > largest ? all[l] : largest;
  for (; i < n; ++i) {
    const float value = LoadFloat(z[i]);
    largest = value > largest ? value : largest;
  }
  return largest;
}

template <typename T>
LogSum RowLogSumExp(const T* z, int64_t n) {
  const float max = MaxOfRow(z, n);
  if (max == kMinusInfinity) return {max, 0};
  LaneSum sum;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < LaneSum::kParts; ++k)
      sum.part[k] += ExpBelow88(LoadVector(z + i + k * kWidth) - max);
  }
  float total = Total(sum);
  for (; i < n; ++i) total += ExpBelow88(Broadcast(LoadFloat(z[i]) - max))[0];
  return {max, __builtin_logf(total)};
}

template <typename T>
float RowSumBelow(const T* z, int64_t n, float max) {
  LaneSum sum;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
#pragma GCC unroll 4
    for (int k = 0; k < LaneSum::kParts; ++k)
      sum.part[k] += LoadVector(z + i + k * kWidth) - max;
  }
  float total = Total(sum);
  for (; i < n; ++i) total += LoadFloat(z[i]) - max;
  return total;
}

template <typename T>
void RowScaledSoftmax(T* z, int64_t n, LogSum sum, float scale, float shift) {
  const auto softmax = [=](Vector logits) {
    return ExpBelow88(logits - sum.max - sum.log_sum) * scale + shift;
  };
  ForVectors(
      n, [=](int64_t i) { StoreVector(softmax(LoadVector(z + i)), z + i); },
      [=](int64_t i, int64_t count) {
        StorePart(softmax(LoadPart(z + i, count)), count, z + i);
      });
}

}  // namespace

LogSum LogSumExp(const void* logits, bool bf16, int64_t n) {
  return bf16 ? RowLogSumExp(static_cast<const uint16_t*>(logits), n)
              : RowLogSumExp(static_cast<const float*>(logits), n);
}

float SumBelow(const void* logits, bool bf16, int64_t n, float max) {
  return bf16 ? RowSumBelow(static_cast<const uint16_t*>(logits), n, max)
              : RowSumBelow(static_cast<const float*>(logits), n, max);
}

void ScaledSoftmax(void* logits, bool bf16, int64_t n, LogSum sum, float scale,
                   float shift) {
  if (bf16) {
    RowScaledSoftmax(static_cast<uint16_t*>(logits), n, sum, scale, shift);
  } else {
    RowScaledSoftmax(static_cast<float*>(logits), n, sum, scale, shift);
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
