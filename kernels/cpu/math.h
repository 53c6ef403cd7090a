// Elementary functions in FP32 that compilers turn into vector code: no calls,
// no branches, the same bits for an element wherever it stands in a loop.
#ifndef KERNELS_CPU_MATH_H_
#define KERNELS_CPU_MATH_H_

#include <bit>
#include <cstdint>

namespace shardgraph {

// e^x within 2 units in the last place; 0 and infinity beyond the range, NaN
// for NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2, e^r by a polynomial (coefficients of
// the Cephes library), 2^n in two factors so that subnormal results come out.
inline float FastExp(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 x 2^23: adding it rounds
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = x * 1.44269504088896341f + kRound;
  const float n = shifted - kRound;
  const float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // Exponent bits: n = n1 + n2, halves of the integer in shifted's low bits.
  const int32_t whole =
      static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4B400000u);
  const int32_t half = whole >> 1;
  const auto power = [](int32_t e) {
    return std::bit_cast<float>((static_cast<uint32_t>(e) + 127u) << 23);
  };
  return p * power(half) * power(whole - half);
}

// 1 / (1 + e^-x): relative error of a few units in the last place on both
// sides.
inline float FastSigmoid(float x) { return 1.0f / (1.0f + FastExp(-x)); }

}  // namespace shardgraph

#endif  // KERNELS_CPU_MATH_H_
