// Arithmetic that CUDA has for kernels only, for kernels on the double.
// Included by device.h.
#ifndef TESTS_FAKE_CUDA_DEVICE_MATH_H_
#define TESTS_FAKE_CUDA_DEVICE_MATH_H_

#include <cuda_bf16.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace shardgraph::fake_cuda {
[[noreturn]] void Trap(const char* what);
}  // namespace shardgraph::fake_cuda

// The fast functions are the accurate ones here: a test that passes only with
// one of the two has too tight a tolerance.
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __frsqrt_rn(float x) { return 1.0f / std::sqrt(x); }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
// glibc has the names __expf and the like for itself: these are overloads of
// none, so they go by macro.
namespace shardgraph::fake_cuda {
inline float Exp(float x) { return std::exp(x); }
inline float Log(float x) { return std::log(x); }
inline float Exp10(float x) { return std::pow(10.0f, x); }
inline float Sin(float x) { return std::sin(x); }
inline float Cos(float x) { return std::cos(x); }
inline float Pow(float x, float y) { return std::pow(x, y); }
}  // namespace shardgraph::fake_cuda
#define __expf(x) ::shardgraph::fake_cuda::Exp(x)
#define __exp10f(x) ::shardgraph::fake_cuda::Exp10(x)
#define __logf(x) ::shardgraph::fake_cuda::Log(x)
#define __log2f(x) ::std::log2(static_cast<float>(x))
#define __log10f(x) ::std::log10(static_cast<float>(x))
#define __sinf(x) ::shardgraph::fake_cuda::Sin(x)
#define __cosf(x) ::shardgraph::fake_cuda::Cos(x)
#define __powf(x, y) ::shardgraph::fake_cuda::Pow(x, y)
inline float __saturatef(float x) {
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) {
  return std::bit_cast<long long>(x);
}
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) {
  return std::countl_zero(static_cast<unsigned long long>(x));
}
inline int __ffs(int x) {
  return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1;
}
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<uint64_t>(x) * y) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long x,
                                     unsigned long long y) {
  return static_cast<unsigned long long>(
      (static_cast<unsigned __int128>(x) * y) >> 64);
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(hi) << 32 | lo;
  return static_cast<unsigned>((both << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift) {
  const uint64_t both = static_cast<uint64_t>(hi) << 32 | lo;
  return static_cast<unsigned>(both >> (shift & 31));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(both >> (8 * (s >> (4 * i) & 7)) & 0xff)
              << (8 * i);
  }
  return result;
}
[[noreturn]] inline void __trap() { ::shardgraph::fake_cuda::Trap("__trap()"); }
inline void __nanosleep(unsigned) {}

// CUDA has these in the global namespace.
template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

// BF16 and FP16: what the toolkit's headers have for devices only.

inline __nv_bfloat16 __hfma(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) {
  return __float2bfloat16_rn(
      std::fma(__bfloat162float(a), __bfloat162float(b), __bfloat162float(c)));
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b,
                              __nv_bfloat162 c) {
  return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};
}

#endif  // TESTS_FAKE_CUDA_DEVICE_MATH_H_
