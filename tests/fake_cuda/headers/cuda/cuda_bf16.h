// Stand-in for the toolkit's cuda_bf16.h: conversions and arithmetic.
#ifndef TESTS_FAKE_CUDA_HEADERS_CUDA_BF16_H_
#define TESTS_FAKE_CUDA_HEADERS_CUDA_BF16_H_

#include <bit>
#include <cstdint>

#include "cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {
    const auto u = std::bit_cast<uint32_t>(x);
    bits = x != x ? 0x7fff
                  : static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};
inline float __bfloat162float(__nv_bfloat16 x) { return x; }
inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
struct __align__(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat16 __hadd(__nv_bfloat16 a, __nv_bfloat16 b) {
  return static_cast<float>(a) + static_cast<float>(b);
}
inline __nv_bfloat16 operator*(__nv_bfloat16 a, __nv_bfloat16 b) {
  return static_cast<float>(a) * static_cast<float>(b);
}

#endif  // TESTS_FAKE_CUDA_HEADERS_CUDA_BF16_H_
