// The functions of pointwise ops on one element, in FP32; device code.
// kernels/pointwise/pointwise.h has the formulas.
#ifndef KERNELS_POINTWISE_CUDA_FUNCTIONS_H_
#define KERNELS_POINTWISE_CUDA_FUNCTIONS_H_

#include "kernels/cuda/group.h"
#include "kernels/pointwise/pointwise_run.h"

namespace shardgraph::cuda {

inline constexpr float kSqrtHalf = 0.70710678118654752f;
inline constexpr float kSqrt2OverPi = 0.79788456080286536f;
inline constexpr float kInverseSqrt2Pi = 0.39894228040143268f;
inline constexpr float kGeluCubic = 0.044715f;

__device__ __forceinline__ float Sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float Silu(float x) { return x * Sigmoid(x); }
__device__ __forceinline__ float SiluSlope(float x) {
  const float s = Sigmoid(x);
  return s + x * s * (1.0f - s);
}
// (1 + tanh(u)) / 2 = sigmoid(2 u), without cancellation where x is negative.
__device__ __forceinline__ float GeluTanhSigmoid(float x) {
  return Sigmoid(2.0f * kSqrt2OverPi * (x + kGeluCubic * x * x * x));
}
__device__ __forceinline__ float GeluTanh(float x) {
  return x * GeluTanhSigmoid(x);
}
__device__ __forceinline__ float GeluTanhSlope(float x) {
  const float s = GeluTanhSigmoid(x);
  return s + x * s * (1.0f - s) * 2.0f * kSqrt2OverPi *
                 (1.0f + 3.0f * kGeluCubic * x * x);
}
__device__ __forceinline__ float GeluErf(float x) {
  return 0.5f * x * erfcf(-x * kSqrtHalf);
}
__device__ __forceinline__ float GeluErfSlope(float x) {
  return 0.5f * erfcf(-x * kSqrtHalf) +
         x * expf(-0.5f * x * x) * kInverseSqrt2Pi;
}

// Functions of one result. T is the dtype that kSwiglu rounds to in between.
template <typename T>
__device__ __forceinline__ float PointwiseValue(Pointwise function, float a,
                                                float b) {
  switch (function) {
    case Pointwise::kAdd:
      return a + b;
    case Pointwise::kGeluTanh:
      return GeluTanh(a);
    case Pointwise::kGeluErf:
      return GeluErf(a);
    case Pointwise::kSilu:
      return Silu(a);
    case Pointwise::kRelu:
      return a < 0.0f ? 0.0f : a;
    case Pointwise::kGeluTanhGradient:
      return a * GeluTanhSlope(b);
    case Pointwise::kGeluErfGradient:
      return a * GeluErfSlope(b);
    case Pointwise::kSiluGradient:
      return a * SiluSlope(b);
    case Pointwise::kReluGradient:
      return b > 0.0f ? a : 0.0f;
    case Pointwise::kSwiglu:
      return Rounded<T>(Silu(a)) * b;
    default:
      return a;
  }
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_POINTWISE_CUDA_FUNCTIONS_H_
