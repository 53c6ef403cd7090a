// RoundToOdd: from FP64 to a 16-bit float with one rounding.
#ifndef KERNELS_ROUND_TO_ODD_H_
#define KERNELS_ROUND_TO_ODD_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace shardgraph {

// Rounds to odd, so that a following rounding to 16 bits is a single rounding
// of `value` (to nearest even).
inline float RoundToOdd(double value) {
  const float f = static_cast<float>(value);
  if (!std::isfinite(value) || static_cast<double>(f) == value) return f;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (std::abs(static_cast<double>(f)) > std::abs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

}  // namespace shardgraph

#endif  // KERNELS_ROUND_TO_ODD_H_
