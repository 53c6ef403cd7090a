// Vectors of FP32 numbers, as wide as the CPU target that a source is compiled
// for: loads, stores, elementary functions, sums in a fixed order; for sources
// of a cpu_target_library (kernels/cpu/target.h).
//
// Elements in memory are float, uint16_t (the bits of a BF16) or Float16Bits.
// Addresses need no alignment. A part of a vector is read and written by
// functions that end in Part, so that the rest of an array is computed by the
// same instructions as its beginning.
#ifndef KERNELS_CPU_VECTOR_H_
#define KERNELS_CPU_VECTOR_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector_math.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Vector __attribute__((vector_size(4 * kWidth)));
typedef int32_t IntVector __attribute__((vector_size(4 * kWidth)));
typedef uint32_t WordVector __attribute__((vector_size(4 * kWidth)));
typedef uint16_t HalfVector __attribute__((vector_size(2 * kWidth)));

// In memory: at any address, of any type.
typedef float VectorInMemory
    __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef uint16_t HalfVectorInMemory
    __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));

SG_VECTOR_INLINE Vector Broadcast(float value) { return value - Vector{}; }

SG_VECTOR_INLINE Vector LoadVector(const float* data) {
  return *reinterpret_cast<const VectorInMemory*>(data);
}
SG_VECTOR_INLINE Vector LoadVector(const uint16_t* data) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__clang__)
  // Better than GCC's conversion.
  typedef int16_t Short8 __attribute__((vector_size(16)));
  Short8 bits;
  std::memcpy(&bits, data, sizeof(bits));
  return (Vector)((WordVector)__builtin_ia32_pmovzxwd256(bits) << 16);
#else
  const HalfVector bits = *reinterpret_cast<const HalfVectorInMemory*>(data);
  return (Vector)(__builtin_convertvector(bits, WordVector) << 16);
#endif
}
SG_VECTOR_INLINE Vector LoadVector(const Float16Bits* data) {
  float values[kWidth];
  for (int i = 0; i < kWidth; ++i) values[i] = LoadFloat(data[i]);
  return LoadVector(values);
}

SG_VECTOR_INLINE void StoreVector(Vector value, float* data) {
  *reinterpret_cast<VectorInMemory*>(data) = value;
}
// As StoreFloat: to nearest even, NaN stays NaN.
SG_VECTOR_INLINE void StoreVector(Vector value, uint16_t* data) {
  const WordVector bits = (WordVector)value;
  const WordVector rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const WordVector kept = value == value ? rounded : (bits | 0x400000u);
#if defined(__AVX512F__)
  *reinterpret_cast<HalfVectorInMemory*>(data) =
      __builtin_convertvector(kept >> 16, HalfVector);
#else
  const IntVector high = (IntVector)kept >> 16;
#if defined(__AVX__)
  typedef int32_t Int4 __attribute__((vector_size(16)));
  Int4 halves[2];
  std::memcpy(halves, &high, sizeof(high));
  const auto packed = __builtin_ia32_packssdw128(halves[0], halves[1]);
#else
  const auto packed = __builtin_ia32_packssdw128(high, high);
#endif
  std::memcpy(data, &packed, 2 * kWidth);
#endif
}
SG_VECTOR_INLINE void StoreVector(Vector value, Float16Bits* data) {
  float values[kWidth];
  StoreVector(value, values);
  for (int i = 0; i < kWidth; ++i) StoreFloat(values[i], data + i);
}

// `count` elements in front, less than kWidth; the others are zero.
template <typename T>
SG_VECTOR_INLINE Vector LoadPart(const T* data, int64_t count) {
  T elements[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) elements[i] = data[i];
  return LoadVector(elements);
}
template <typename T>
SG_VECTOR_INLINE void StorePart(Vector value, int64_t count, T* data) {
  T elements[kWidth];
  StoreVector(value, elements);
  for (int64_t i = 0; i < count; ++i) data[i] = elements[i];
}

// What a T in memory would hold of `value`.
template <typename T>
SG_VECTOR_INLINE Vector RoundedTo(Vector value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else if constexpr (__is_same(T, uint16_t)) {
    const WordVector bits = (WordVector)value;
    const WordVector rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (Vector)((value == value ? rounded : (bits | 0x400000u)) &
                    0xffff0000u);
  } else {
    T elements[kWidth];
    StoreVector(value, elements);
    return LoadVector(elements);
  }
}

// Where one of both is NaN: b.
SG_VECTOR_INLINE Vector Max(Vector a, Vector b) {
#if defined(__AVX512DQ__)
  Vector result;
  asm("vmaxps %2, %1, %0" : "=v"(result) : "v"(a), "v"(b));
  return result;
#elif defined(__AVX512F__)
  return a > b ? a : b;
#elif defined(__AVX__)
  return __builtin_ia32_maxps256(a, b);
#else
  return __builtin_ia32_maxps(a, b);
#endif
}
SG_VECTOR_INLINE Vector Min(Vector a, Vector b) {
#if defined(__AVX512DQ__)
  Vector result;
  asm("vminps %2, %1, %0" : "=v"(result) : "v"(a), "v"(b));
  return result;
#elif defined(__AVX512F__)
  return a < b ? a : b;
#elif defined(__AVX__)
  return __builtin_ia32_minps256(a, b);
#else
  return __builtin_ia32_minps(a, b);
#endif
}

SG_VECTOR_INLINE Vector SquareRoot(Vector a) {
#if defined(__AVX512F__)
  float values[kWidth];
  StoreVector(a, values);
  for (int i = 0; i < kWidth; ++i) values[i] = __builtin_sqrtf(values[i]);
  return LoadVector(values);
#elif defined(__AVX__)
  return __builtin_ia32_sqrtps256(a);
#else
  return __builtin_ia32_sqrtps(a);
#endif
}

// e^x for x of at most 88.3 within 2 units in the last place; 0 below -87.3
// (where the result would be subnormal), NaN for NaN.
//
// x = n ln 2 + r; e^r by a polynomial (coefficients of Cephes expf), evaluated
// in pairs because its latency is what loops wait for; 2^n by its bits. Adding
// 1.5 x 2^23 rounds to an integer and leaves it in the low bits.
SG_VECTOR_INLINE Vector ExpBelow88(Vector x) {
  const Vector lowest = Broadcast(-87.3f);
  const Vector magic = Broadcast(12582912.0f);
  const Vector clamped = Max(lowest, x);
  const Vector shifted = clamped * 1.44269504088896341f + magic;
  const Vector n = shifted - magic;
  const Vector r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  const Vector square = r * r;
  const Vector p0 = r * 1.9875691500e-4f + 1.3981999507e-3f;
  const Vector p1 = r * 8.3334519073e-3f + 4.1665795894e-2f;
  const Vector p2 = r * 1.6666665459e-1f + 5.0000001201e-1f;
  const Vector p = (p0 * square + p1) * square + p2;
  const Vector mantissa = p * square + (r + 1.0f);
#if defined(__AVX512DQ__)
  Vector result;
  asm("vscalefps %2, %1, %0" : "=v"(result) : "v"(mantissa), "v"(n));
#else
  const Vector power = (Vector)(((WordVector)shifted << 23) + 0x3f800000u);
  const Vector result = mantissa * power;
#endif
  return x < lowest ? Vector{} : result;
}

// The same for any x: infinity above 88.8, between 88.3 and that right or
// infinity.
SG_VECTOR_INLINE Vector Exp(Vector x) {
  return ExpBelow88(Min(Broadcast(88.8f), x));
}

// 1 / (1 + e^-x): nothing cancels on either side.
SG_VECTOR_INLINE Vector Sigmoid(Vector x) { return 1.0f / (1.0f + Exp(-x)); }

// The normal distribution function, 1/2 erfc(-x / sqrt(2)), within 2^-22, and
// within 2^-13 of itself down to 1e-6.
//
// Near 0 a polynomial in the square, elsewhere e to a polynomial (Norbert
// Juffa's erff, Stack Overflow 35148198).
SG_VECTOR_INLINE Vector Normal(Vector x) {
  const Vector a = x * 0.70710678118654752f;
  const Vector s = a * a;
  const Vector t = (Vector)((WordVector)a & 0x7fffffffu);
  Vector far = t * -1.72853470e-5f + 3.83197126e-4f;
  far = far * s + (t * -3.88396438e-3f + 2.42546219e-2f);
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = far * t - t;
  const Vector tail = 0.5f * Exp(far);
  Vector near = s * -5.96761703e-4f + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * a + a;
  const Vector beyond = x > 0.0f ? 1.0f - tail : tail;
  return t > 0.927734375f ? beyond : 0.5f + 0.5f * near;
}

// Calls body(i) for the beginnings of whole vectors in [0, n), then
// rest(i, count) for what remains, if anything.
template <typename Body, typename Rest>
SG_VECTOR_INLINE void ForVectors(int64_t n, Body body, Rest rest) {
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) body(i);
  if (i < n) rest(i, n - i);
}

// A sum over elements c in sixteen partial sums: c adds to partial c % 16,
// whatever the width of a vector.
constexpr int kLanes = 16;
struct LaneSum {
  static constexpr int kParts = kLanes / kWidth;
  Vector part[kParts] = {};
};

SG_VECTOR_INLINE float Total(const LaneSum& sum) {
  float lanes[kLanes];
  for (int i = 0; i < LaneSum::kParts; ++i)
    StoreVector(sum.part[i], lanes + i * kWidth);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// Calls body(c, part, load) for all vectors of [0, n), the last one perhaps a
// part: `part` is the index in a LaneSum, load(pointer) gives the elements from
// pointer + c on, zeros behind the end.
template <typename Body>
SG_VECTOR_INLINE void ForLanes(int64_t n, Body body) {
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < LaneSum::kParts; ++i) {
      const int64_t at = c + i * kWidth;
      body(at, i, [at](const auto* data) { return LoadVector(data + at); });
    }
  }
  for (int i = 0; c < n; c += kWidth, ++i) {
    const int64_t count = n - c;
    body(c, i, [c, count](const auto* data) {
      return count >= kWidth ? LoadVector(data + c) : LoadPart(data + c, count);
    });
  }
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_CPU_VECTOR_H_
