// Stand-in for the toolkit's cuda_fp16.h. Not the compiler's _Float16, which
// clang 14 has not.
#ifndef TESTS_FAKE_CUDA_HEADERS_CUDA_FP16_H_
#define TESTS_FAKE_CUDA_HEADERS_CUDA_FP16_H_

#include "cuda_runtime.h"
#include "kernels/cpu/vector_math.h"

struct __half {
  shardgraph::Float16Bits value;
  __half() = default;
  __half(float x) { shardgraph::StoreFloat(x, &value); }
  operator float() const { return shardgraph::LoadFloat(value); }
};
inline float __half2float(__half x) { return x; }
inline __half __float2half(float x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __hmul(__half a, __half b) {
  return static_cast<float>(a) * static_cast<float>(b);
}

#endif  // TESTS_FAKE_CUDA_HEADERS_CUDA_FP16_H_
