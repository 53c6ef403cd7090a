// Multiply-adds of BF16 numbers as the BF16 instructions of AMX and AVX-512 do
// them, for the plain code that stands for those.
#ifndef KERNELS_CPU_BF16_DOUBLE_H_
#define KERNELS_CPU_BF16_DOUBLE_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace shardgraph::SG_CPU_TARGET {
namespace {

// Subnormal numbers count as zeros of their sign, read and written.
inline float FlushSubnormal(float value) {
  return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
}
inline float WidenBf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return FlushSubnormal(value);
}
// sum + a b, rounded once.
inline float MultiplyAdd(float a, float b, float sum) {
  const float product = a * b;  // exact unless subnormal or out of range
  const float size = std::fabs(product);
  const bool exact =
      (size >= 0x1p-126f && size <= 0x1.fffffep127f) || a == 0 || b == 0;
  return FlushSubnormal(exact ? sum + product : std::fma(a, b, sum));
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_CPU_BF16_DOUBLE_H_
