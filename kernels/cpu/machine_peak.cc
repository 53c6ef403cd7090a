#include "kernels/cpu/machine_peak.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

constexpr int kSums = 12;  // enough to hide the latency of a multiply-add

}  // namespace

int64_t FlopsPerStep() { return 2 * kSums * kWidth; }

float MultiplyAdd(int64_t steps) {
  Vector sum[kSums];
  for (int i = 0; i < kSums; ++i) sum[i] = Vector{} + 1.0f + 0.125f * i;
  Vector factor = Vector{} + 0.5f;
  Vector term = Vector{} + 1.0f;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kSums; ++i) {
      sum[i] = sum[i] * factor + term;
    }
    // Keeps the compiler from computing ahead.
    asm volatile("" : "+x"(factor), "+x"(term));
  }
  float total = 0;
  for (int i = 0; i < kSums; ++i) {
    for (int l = 0; l < kWidth; ++l) total += sum[i][l];
  }
  return total;
}

void Triad(int64_t n, float* __restrict a, const float* __restrict b,
           const float* __restrict c) {
  for (int64_t i = 0; i < n; ++i) a[i] = b[i] + 3.0f * c[i];
}

}  // namespace shardgraph::SG_CPU_TARGET
