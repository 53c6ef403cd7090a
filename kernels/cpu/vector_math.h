// Elementary functions for loops that the compiler vectorises, and conversions
// of BF16, for sources of a cpu_target_library (kernels/cpu/target.h).
//
// Everything is inlined by force, so that no copy compiled for one target can
// be shared with another. No branches: loops over arrays of them vectorise.
#ifndef KERNELS_CPU_VECTOR_MATH_H_
#define KERNELS_CPU_VECTOR_MATH_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/element_type.h"

#define SG_VECTOR_INLINE static inline __attribute__((always_inline))

namespace shardgraph {

SG_VECTOR_INLINE float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

SG_VECTOR_INLINE uint32_t BitsOfFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// F16 is rare on CPUs: compiled for the baseline target alone, it costs the
// others no compile time.
#if defined(__AVX__)
inline constexpr bool kHasFloat16 = false;
#else
inline constexpr bool kHasFloat16 = true;
#endif

struct Float16Bits {
  uint16_t bits;
};

// An FP32 element, or a BF16 or IEEE half one as its bits.
SG_VECTOR_INLINE float LoadFloat(float value) { return value; }
SG_VECTOR_INLINE float LoadFloat(uint16_t bf16) {
  return FloatFromBits(static_cast<uint32_t>(bf16) << 16);
}
SG_VECTOR_INLINE float LoadFloat(Float16Bits half) {
  // The product moves the exponent from a bias of 15 to one of 127, subnormal
  // numbers included.
  const float magnitude = FloatFromBits((half.bits & 0x7fffu) << 13) * 0x1p112f;
  const uint32_t special = (half.bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  const uint32_t sign = (half.bits & 0x8000u) << 16;
  return FloatFromBits(BitsOfFloat(magnitude) | special | sign);
}

// Rounds to nearest even; NaN stays NaN.
SG_VECTOR_INLINE void StoreFloat(float value, float* out) { *out = value; }
SG_VECTOR_INLINE void StoreFloat(float value, uint16_t* out) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const uint32_t nan = bits | 0x400000u;
  *out = static_cast<uint16_t>((value == value ? rounded : nan) >> 16);
}
SG_VECTOR_INLINE void StoreFloat(float value, Float16Bits* out) {
  const uint32_t bits = BitsOfFloat(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 leaves what a subnormal half keeps in the low bits, rounded.
  const uint32_t subnormal =
      BitsOfFloat(FloatFromBits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t normal =
      (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? 0x7e00u : result;
  out->bits = static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u));
}

// e^x within 2 units in the last place; 0 below -87.3 (where the result would
// be subnormal), infinity above 88.3, NaN for NaN.
//
// x = n ln 2 + r; e^r by a polynomial (coefficients of Cephes expf), 2^n by its
// bits. Adding 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
SG_VECTOR_INLINE float VectorExp(float x) {
  const float lowest = -87.3f;
  const float highest = 88.8f;
  float clamped = x < lowest ? lowest : x;
  clamped = clamped > highest ? highest : clamped;
  const float magic = 12582912.0f;
  const float shifted = clamped * 1.44269504088896341f + magic;
  const float n = shifted - magic;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.0f);
  const float power = FloatFromBits((BitsOfFloat(shifted) << 23) + 0x3f800000u);
  return x < lowest ? 0.0f : p * power;
}

// The lanes of a sum or maximum: as many accumulators, joined in a fixed order.
inline constexpr int kLanes = 16;

// Largest of x[0, n); -infinity when n is 0. NaN elements are passed over.
template <typename T>
SG_VECTOR_INLINE float VectorMax(const T* x, int64_t n) {
  float lanes[kLanes];
  for (int l = 0; l < kLanes; ++l) lanes[l] = FloatFromBits(0xff800000u);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float value = LoadFloat(x[i + l]);
      lanes[l] = value > lanes[l] ? value : lanes[l];
    }
  }
  for (; i < n; ++i) {
    const float value = LoadFloat(x[i]);
    lanes[0] = value > lanes[0] ? value : lanes[0];
  }
  for (int l = 1; l < kLanes; ++l)
    lanes[0] = lanes[l] > lanes[0] ? lanes[l] : lanes[0];
  return lanes[0];
}

SG_VECTOR_INLINE float SumOfLanes(const float* lanes) {
  float sum = lanes[0];
  for (int l = 1; l < kLanes; ++l) sum += lanes[l];
  return sum;
}

}  // namespace shardgraph

#endif  // KERNELS_CPU_VECTOR_MATH_H_
