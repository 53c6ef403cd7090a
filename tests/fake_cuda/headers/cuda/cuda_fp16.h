// Stand-in for the toolkit's cuda_fp16.h: the compiler's own _Float16.
#ifndef TESTS_FAKE_CUDA_HEADERS_CUDA_FP16_H_
#define TESTS_FAKE_CUDA_HEADERS_CUDA_FP16_H_

#include "cuda_runtime.h"

struct __half {
  _Float16 value;
  __half() = default;
  __half(float x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};
inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __hmul(__half a, __half b) {
  return static_cast<float>(a) * static_cast<float>(b);
}

#endif  // TESTS_FAKE_CUDA_HEADERS_CUDA_FP16_H_
