#include "kernels/norm/norm_row.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

template <typename T>
SG_VECTOR_INLINE float SumOfRow(const T* x, int64_t n) {
  LaneSum sum;
  ForLanes(n, [&](int64_t, int part, auto load) { sum.part[part] += load(x); });
  return Total(sum);
}
template <typename T>
SG_VECTOR_INLINE float SquaresOfRow(const T* x, float mean, int64_t n) {
  LaneSum sum;
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < LaneSum::kParts; ++i) {
      const Vector d = LoadVector(x + c + i * kWidth) - mean;
      sum.part[i] += d * d;
    }
  }
  float rest[kLanes] = {};
  for (int i = 0; c < n; ++c, ++i) {
    const float d = LoadFloat(x[c]) - mean;
    rest[i] = d * d;
  }
#pragma GCC unroll 4
  for (int i = 0; i < LaneSum::kParts; ++i)
    sum.part[i] += LoadVector(rest + i * kWidth);
  return Total(sum);
}

// y[c] = f(load, c) over a row.
template <typename T, typename F>
SG_VECTOR_INLINE void StoreRow(T* y, int64_t n, F f) {
  ForVectors(
      n,
      [=](int64_t i) {
        StoreVector(f([i](const auto* from) { return LoadVector(from + i); }),
                    y + i);
      },
      [=](int64_t i, int64_t count) {
        StorePart(
            f([=](const auto* from) { return LoadPart(from + i, count); }),
            count, y + i);
      });
}

template <typename T>
NormStatistics Forward(const NormRows& rows, const T* x, T* y) {
  const int64_t n = rows.columns;
  const T* const weight = static_cast<const T*>(rows.weight);
  const T* const bias = static_cast<const T*>(rows.bias);
  const float scale = n > 0 ? 1.0f / static_cast<float>(n) : 0.0f;
  const float mean = rows.centered ? scale * SumOfRow(x, n) : 0.0f;
  const float variance = scale * SquaresOfRow(x, mean, n);
  const float rstd = 1.0f / __builtin_sqrtf(variance + rows.epsilon);
  if (!rows.centered) {
    StoreRow(y, n, [=](auto load) {
      return RoundedTo<T>(load(x) * rstd) * load(weight);
    });
  } else if (bias == nullptr) {
    StoreRow(y, n,
             [=](auto load) { return (load(x) - mean) * rstd * load(weight); });
  } else {
    StoreRow(y, n, [=](auto load) {
      return (load(x) - mean) * rstd * load(weight) + load(bias);
    });
  }
  return {mean, rstd};
}

template <typename T, bool kCentered>
SG_VECTOR_INLINE void Gradient(const NormRows& rows, const T* dy, const T* x,
                               NormStatistics statistics, T* dx, float* dweight,
                               float* dbias) {
  const int64_t n = rows.columns;
  const T* const weight = static_cast<const T*>(rows.weight);
  const float mean = kCentered ? statistics.mean : 0.0f;
  const float rstd = statistics.rstd;
  LaneSum sum_g, sum_gh;
  const auto first = [&](int part, auto load, auto store) {
    const Vector d = load(dy);
    const Vector h = (load(x) - mean) * rstd;
    const Vector g = d * load(weight);
    if (kCentered) sum_g.part[part] += g;
    sum_gh.part[part] += g * h;
    if (dweight != nullptr) store(load(dweight) + d * h, dweight);
    if (kCentered && dbias != nullptr) store(load(dbias) + d, dbias);
  };
  int64_t c = 0;
  for (; c + kLanes <= n; c += kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < LaneSum::kParts; ++i) {
      const int64_t at = c + i * kWidth;
      first(
          i, [at](const auto* from) { return LoadVector(from + at); },
          [at](Vector value, auto* to) { StoreVector(value, to + at); });
    }
  }
  for (int i = 0; c < n; c += kWidth, ++i) {
    const int64_t count = n - c < kWidth ? n - c : kWidth;
    const int64_t at = c;
    // Beyond the row h is not zero, but d is.
    first(
        i, [=](const auto* from) { return LoadPart(from + at, count); },
        [=](Vector value, auto* to) { StorePart(value, count, to + at); });
  }
  if (dx == nullptr) return;
  const float scale = n > 0 ? 1.0f / static_cast<float>(n) : 0.0f;
  const float g_mean = kCentered ? scale * Total(sum_g) : 0.0f;
  const float gh_mean = scale * Total(sum_gh);
  const auto slope = [=](auto load) {
    const Vector h = (load(x) - mean) * rstd;
    const Vector g = load(dy) * load(weight);
    return kCentered ? rstd * (g - g_mean - h * gh_mean)
                     : rstd * (g - h * gh_mean);
  };
  if (rows.accumulate) {
    StoreRow(dx, n, [=](auto load) { return load(dx) + slope(load); });
  } else {
    StoreRow(dx, n, slope);
  }
}

template <typename T>
NormStatistics ForwardOf(const NormRows& rows, const void* x, void* y) {
  return Forward(rows, static_cast<const T*>(x), static_cast<T*>(y));
}

template <typename T>
void GradientOf(const NormRows& rows, const void* dy, const void* x,
                NormStatistics statistics, void* dx, float* dweight,
                float* dbias) {
  const auto* const d = static_cast<const T*>(dy);
  const auto* const in = static_cast<const T*>(x);
  auto* const out = static_cast<T*>(dx);
  if (rows.centered) {
    Gradient<T, true>(rows, d, in, statistics, out, dweight, dbias);
  } else {
    Gradient<T, false>(rows, d, in, statistics, out, dweight, dbias);
  }
}

}  // namespace

NormStatistics NormForward(const NormRows& rows, const void* x, void* y) {
  if constexpr (kHasFloat16) {
    if (rows.type == ElementType::kF16)
      return ForwardOf<Float16Bits>(rows, x, y);
  }
  return rows.type == ElementType::kF32 ? ForwardOf<float>(rows, x, y)
                                        : ForwardOf<uint16_t>(rows, x, y);
}

void NormGradient(const NormRows& rows, const void* dy, const void* x,
                  NormStatistics statistics, void* dx, float* dweight,
                  float* dbias) {
  if constexpr (kHasFloat16) {
    if (rows.type == ElementType::kF16)
      return GradientOf<Float16Bits>(rows, dy, x, statistics, dx, dweight,
                                     dbias);
  }
  rows.type == ElementType::kF32
      ? GradientOf<float>(rows, dy, x, statistics, dx, dweight, dbias)
      : GradientOf<uint16_t>(rows, dy, x, statistics, dx, dweight, dbias);
}

}  // namespace shardgraph::SG_CPU_TARGET
