#include "kernels/matmul/gemm_tile.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector_math.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// The micro-kernel keeps kMicroRows x kMicroColumns sums in registers: 12 of 16
// vector registers, or 24 of 32 with AVX-512.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
constexpr int kMicroRows = 12;
#elif defined(__AVX__)
constexpr int kWidth = 8;
constexpr int kMicroRows = 6;
#else
constexpr int kWidth = 4;
constexpr int kMicroRows = 6;
#endif
constexpr int kMicroColumns = 2 * kWidth;

static_assert(kGemmTileRows % kMicroRows == 0);
static_assert(kGemmTileColumns % kMicroColumns == 0);
static_assert(kMicroColumns % 8 == 0);

typedef float Vector
    __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef float Vector8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Index8 __attribute__((vector_size(32)));

// By pointer: returning a vector would be another ABI on each target.
inline void Load8(const float* data, Vector8* value) {
  *value = *reinterpret_cast<const Vector8*>(data);
}
inline void Load8(const uint16_t* data, Vector8* value) {
  for (int i = 0; i < 8; ++i) (*value)[i] = LoadFloat(data[i]);
}

// out[p * out_stride + i] = in[i * in_stride + p] for 8 x 8 elements.
template <typename T>
inline void Transpose8(const T* in, int64_t in_stride, float* out,
                       int64_t out_stride) {
  Vector8 r[8], s[8];
  for (int i = 0; i < 8; ++i) Load8(in + i * in_stride, &r[i]);
  const Index8 low1 = {0, 8, 1, 9, 4, 12, 5, 13};
  const Index8 high1 = {2, 10, 3, 11, 6, 14, 7, 15};
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shuffle(r[i], r[i + 1], low1);
    s[i + 1] = __builtin_shuffle(r[i], r[i + 1], high1);
  }
  const Index8 low2 = {0, 1, 8, 9, 4, 5, 12, 13};
  const Index8 high2 = {2, 3, 10, 11, 6, 7, 14, 15};
  for (int i = 0; i < 8; i += 4) {
    r[i] = __builtin_shuffle(s[i], s[i + 2], low2);
    r[i + 1] = __builtin_shuffle(s[i], s[i + 2], high2);
    r[i + 2] = __builtin_shuffle(s[i + 1], s[i + 3], low2);
    r[i + 3] = __builtin_shuffle(s[i + 1], s[i + 3], high2);
  }
  const Index8 low4 = {0, 1, 2, 3, 8, 9, 10, 11};
  const Index8 high4 = {4, 5, 6, 7, 12, 13, 14, 15};
  for (int i = 0; i < 4; ++i) {
    const Vector8 low = __builtin_shuffle(r[i], r[i + 4], low4);
    const Vector8 high = __builtin_shuffle(r[i], r[i + 4], high4);
    std::memcpy(out + i * out_stride, &low, sizeof(low));
    std::memcpy(out + (i + 4) * out_stride, &high, sizeof(high));
  }
}

// Packs `lines` (at most kLines) lines of `depth` elements as
// out[p * kLines + i]; missing lines are zeros.
template <int kLines, typename T>
void PackLines(const T* in, int64_t line_stride, int64_t depth_stride,
               int64_t lines, int64_t depth, float* out) {
  if (lines < kLines) std::memset(out, 0, depth * kLines * sizeof(float));
  if (depth_stride != 1) {  // then line_stride is 1
    if (lines == kLines) {
      for (int64_t p = 0; p < depth; ++p) {
        for (int i = 0; i < kLines; ++i)
          out[p * kLines + i] = LoadFloat(in[p * depth_stride + i]);
      }
      return;
    }
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t i = 0; i < lines; ++i)
        out[p * kLines + i] = LoadFloat(in[p * depth_stride + i * line_stride]);
    }
    return;
  }
  int64_t i = 0;
  for (; i + 8 <= lines; i += 8) {
    const T* from = in + i * line_stride;
    int64_t p = 0;
    for (; p + 8 <= depth; p += 8)
      Transpose8(from + p, line_stride, out + p * kLines + i, kLines);
    for (; p < depth; ++p) {
      for (int j = 0; j < 8; ++j)
        out[p * kLines + i + j] = LoadFloat(from[j * line_stride + p]);
    }
  }
  for (; i < lines; ++i) {
    for (int64_t p = 0; p < depth; ++p)
      out[p * kLines + i] = LoadFloat(in[i * line_stride + p]);
  }
}

template <int kLines>
void Pack(const GemmMatrix& matrix, int64_t line_stride, int64_t depth_stride,
          int64_t line, int64_t lines, int64_t begin, int64_t depth,
          float* out) {
  const int64_t offset = line * line_stride + begin * depth_stride;
  if (matrix.bf16) {
    PackLines<kLines>(static_cast<const uint16_t*>(matrix.data) + offset,
                      line_stride, depth_stride, lines, depth, out);
  } else {
    PackLines<kLines>(static_cast<const float*>(matrix.data) + offset,
                      line_stride, depth_stride, lines, depth, out);
  }
}

// sums (+)= a b for one kMicroRows x kMicroColumns block.
void Micro(int64_t depth, const float* a, const float* b, bool first,
           float* sums, int64_t sums_stride) {
  Vector sum[kMicroRows][2] = {};
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b0 = *reinterpret_cast<const Vector*>(b);
    const Vector b1 = *reinterpret_cast<const Vector*>(b + kWidth);
#pragma GCC unroll 12
    for (int i = 0; i < kMicroRows; ++i) {
      sum[i][0] += a[i] * b0;
      sum[i][1] += a[i] * b1;
    }
    a += kMicroRows;
    b += kMicroColumns;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kMicroRows; ++i) {
    Vector* to = reinterpret_cast<Vector*>(sums + i * sums_stride);
    Vector* to1 = reinterpret_cast<Vector*>(sums + i * sums_stride + kWidth);
    *to = first ? sum[i][0] : *to + sum[i][0];
    *to1 = first ? sum[i][1] : *to1 + sum[i][1];
  }
}

template <typename T>
void StoreRow(const float* sums, const float* bias, bool accumulate, int64_t n,
              T* c) {
  if (bias == nullptr && !accumulate) {
    for (int64_t j = 0; j < n; ++j) StoreFloat(sums[j], c + j);
  } else if (bias == nullptr) {
    for (int64_t j = 0; j < n; ++j)
      StoreFloat(LoadFloat(c[j]) + sums[j], c + j);
  } else if (!accumulate) {
    for (int64_t j = 0; j < n; ++j) StoreFloat(sums[j] + bias[j], c + j);
  } else {
    for (int64_t j = 0; j < n; ++j)
      StoreFloat(LoadFloat(c[j]) + (sums[j] + bias[j]), c + j);
  }
}

}  // namespace

void GemmTile(const GemmProblem& problem, int64_t m_begin, int64_t m_end,
              int64_t n_begin, int64_t n_end) {
  alignas(64) float packed_a[kGemmTileRows * kGemmDepth];
  alignas(64) float packed_b[kMicroColumns * kGemmDepth];
  alignas(64) float sums[kGemmTileRows * kGemmTileColumns];
  const int64_t m = m_end - m_begin;
  const int64_t n = n_end - n_begin;
  // Rows of sums: no longer than needed, so that a narrow tile stays in cache.
  const int64_t stride =
      (n + kMicroColumns - 1) / kMicroColumns * kMicroColumns;
  if (problem.k == 0) std::memset(sums, 0, m * stride * sizeof(float));
  for (int64_t p = 0; p < problem.k; p += kGemmDepth) {
    const int64_t depth =
        problem.k - p < kGemmDepth ? problem.k - p : kGemmDepth;
    for (int64_t i = 0; i < m; i += kMicroRows) {
      Pack<kMicroRows>(problem.a, problem.a.row_stride, problem.a.column_stride,
                       m_begin + i, m - i < kMicroRows ? m - i : kMicroRows, p,
                       depth, packed_a + i * depth);
    }
    for (int64_t j = 0; j < n; j += kMicroColumns) {
      Pack<kMicroColumns>(
          problem.b, problem.b.column_stride, problem.b.row_stride, n_begin + j,
          n - j < kMicroColumns ? n - j : kMicroColumns, p, depth, packed_b);
      for (int64_t i = 0; i < m; i += kMicroRows) {
        Micro(depth, packed_a + i * depth, packed_b, p == 0,
              sums + i * stride + j, stride);
      }
    }
  }
  float bias[kGemmTileColumns];
  if (problem.bias != nullptr) {
    for (int64_t j = 0; j < n; ++j) {
      bias[j] = problem.bias_bf16
                    ? LoadFloat(static_cast<const uint16_t*>(
                          problem.bias)[n_begin + j])
                    : static_cast<const float*>(problem.bias)[n_begin + j];
    }
  }
  const float* row_bias = problem.bias == nullptr ? nullptr : bias;
  for (int64_t i = 0; i < m; ++i) {
    const int64_t offset = (m_begin + i) * problem.c_row_stride + n_begin;
    if (problem.c_bf16) {
      StoreRow(sums + i * stride, row_bias, problem.accumulate, n,
               static_cast<uint16_t*>(problem.c) + offset);
    } else {
      StoreRow(sums + i * stride, row_bias, problem.accumulate, n,
               static_cast<float*>(problem.c) + offset);
    }
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
