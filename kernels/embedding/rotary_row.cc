#include "kernels/embedding/rotary_row.h"

#include <cstdint>

#include "kernels/cpu/vector.h"
#include "kernels/embedding/rotate.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// Sine and cosine within 2 units in the last place, or 2^-24 near zeros, for
// |x| up to 2^30.
//
// x = n pi / 2 + r in double precision; polynomials of Cephes sinf and cosf.
SG_VECTOR_INLINE void SineCosine(Vector x, Vector* sine, Vector* cosine) {
  Vector r;
  IntVector n;
  for (int l = 0; l < kWidth; ++l) {
    const double angle = x[l];
    const double magic = 6755399441055744.0;  // 1.5 x 2^52
    const double turns = (angle * 0.63661977236758134 + magic) - magic;
    r[l] = static_cast<float>(angle - turns * 1.5707963267948966);
    n[l] = static_cast<int32_t>(turns);
  }
  const Vector s = r * r;
  Vector sin = s * -1.9515295891e-4f + 8.3321608736e-3f;
  sin = sin * s - 1.6666654611e-1f;
  sin = sin * (s * r) + r;
  Vector cos = s * 2.443315711809948e-5f - 1.388731625493765e-3f;
  cos = cos * s + 4.166664568298827e-2f;
  cos = cos * (s * s) + (1.0f - 0.5f * s);
  const IntVector swap = (n & 1) != 0;
  const IntVector sine_sign = (n & 2) << 30;
  const IntVector cosine_sign = ((n + 1) & 2) << 30;
  *sine = (Vector)((IntVector)(swap ? cos : sin) ^ sine_sign);
  *cosine = (Vector)((IntVector)(swap ? sin : cos) ^ cosine_sign);
}

template <typename T>
void Run(const RotaryRow& row) {
  const T* const x = static_cast<const T*>(row.x);
  T* const y = static_cast<T*>(row.y);
  const int64_t half = row.half;
  // All heads for the angles of one vector, load(p) and store(v, p) for the
  // elements from i on.
  const auto rotate = [&](Vector frequencies, auto load, auto store) {
    Vector sine, cosine;
    SineCosine(row.position * frequencies, &sine, &cosine);
    cosine = RoundedTo<T>(cosine);
    sine = RoundedTo<T>(sine) * row.sign;
    for (int64_t h = 0; h < row.heads; ++h) {
      const T* const in = x + h * row.x_stride;
      T* const out = y + h * row.y_stride;
      const Vector u = load(in), v = load(in + half);
      const RotatedPair pair = RotatePair(u, v, cosine, sine);
      store(pair.first, out);
      store(pair.second, out + half);
    }
  };
  ForVectors(
      half,
      [&](int64_t i) {
        rotate(
            LoadVector(row.frequencies + i),
            [i](const T* from) { return LoadVector(from + i); },
            [i](Vector value, T* to) { StoreVector(value, to + i); });
      },
      [&](int64_t i, int64_t count) {
        rotate(
            LoadPart(row.frequencies + i, count),
            [=](const T* from) { return LoadPart(from + i, count); },
            [=](Vector value, T* to) { StorePart(value, count, to + i); });
      });
}

template <typename T>
void RunAngles(const RotaryAngles& angles) {
  ForVectors(
      angles.half,
      [&](int64_t i) {
        Vector sine, cosine;
        SineCosine(angles.position * LoadVector(angles.frequencies + i), &sine,
                   &cosine);
        StoreVector(RoundedTo<T>(cosine), angles.cosines + i);
        StoreVector(RoundedTo<T>(sine), angles.sines + i);
      },
      [&](int64_t i, int64_t count) {
        Vector sine, cosine;
        SineCosine(angles.position * LoadPart(angles.frequencies + i, count),
                   &sine, &cosine);
        StorePart(RoundedTo<T>(cosine), count, angles.cosines + i);
        StorePart(RoundedTo<T>(sine), count, angles.sines + i);
      });
}

}  // namespace

void Rotate(const RotaryRow& row) {
  switch (row.type) {
    case ElementType::kF32:
      return Run<float>(row);
    case ElementType::kBF16:
      return Run<uint16_t>(row);
    case ElementType::kF16:
      if constexpr (kHasFloat16) Run<Float16Bits>(row);
      return;
  }
}

void Angles(const RotaryAngles& angles) {
  switch (angles.type) {
    case ElementType::kF32:
      return RunAngles<float>(angles);
    case ElementType::kBF16:
      return RunAngles<uint16_t>(angles);
    case ElementType::kF16:
      if constexpr (kHasFloat16) RunAngles<Float16Bits>(angles);
      return;
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
