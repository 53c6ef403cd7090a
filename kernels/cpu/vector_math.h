// Conversions of BF16 and F16 elements, for sources of a cpu_target_library
// (kernels/cpu/target.h). kernels/cpu/vector.h has those of vectors.
//
// Everything is inlined by force, so that no copy compiled for one target can
// be shared with another.
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

}  // namespace shardgraph

#endif  // KERNELS_CPU_VECTOR_MATH_H_
