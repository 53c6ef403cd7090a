#include "kernels/matmul/column_sum_tile.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// Rows that are summed before their sum is added to the total.
constexpr int64_t kRows = 64;
// How far ahead rows are asked for.
constexpr int64_t kAhead = 16;

template <typename X>
SG_VECTOR_INLINE void Sum(const ColumnSum& sum, int64_t begin, int64_t width,
                          float* total) {
  const int64_t stride = sum.row_stride;
  const X* x = static_cast<const X*>(sum.x) + begin;
  for (int64_t first = 0; first < sum.rows; first += kRows) {
    const int64_t last = first + kRows < sum.rows ? first + kRows : sum.rows;
    alignas(64) float partial[kColumnSumWidth] = {};
    int64_t n = first;
    for (; n + 4 <= last; n += 4, x += 4 * stride) {
      for (int64_t i = 0; i < 4; ++i) {
        const char* ahead = reinterpret_cast<const char*>(
            n + kAhead + i < sum.rows ? x + (kAhead + i) * stride : x);
        for (int64_t byte = 0; byte < width * int64_t{sizeof(X)}; byte += 64)
          __builtin_prefetch(ahead + byte);
      }
      int64_t c = 0;
      for (; c + kWidth <= width; c += kWidth) {
        const Vector four =
            (LoadVector(x + c) + LoadVector(x + stride + c)) +
            (LoadVector(x + 2 * stride + c) + LoadVector(x + 3 * stride + c));
        StoreVector(LoadVector(partial + c) + four, partial + c);
      }
      for (; c < width; ++c) {
        partial[c] +=
            (LoadFloat(x[c]) + LoadFloat(x[stride + c])) +
            (LoadFloat(x[2 * stride + c]) + LoadFloat(x[3 * stride + c]));
      }
    }
    for (; n < last; ++n, x += stride) {
      for (int64_t c = 0; c < width; ++c) partial[c] += LoadFloat(x[c]);
    }
    for (int64_t c = 0; c < width; ++c) total[c] += partial[c];
  }
}

template <typename Y>
SG_VECTOR_INLINE void Store(const float* total, int64_t width, bool accumulate,
                            Y* y) {
  for (int64_t c = 0; c < width; ++c)
    StoreFloat(accumulate ? LoadFloat(y[c]) + total[c] : total[c], y + c);
}

}  // namespace

void SumColumns(const ColumnSum& sum, int64_t begin, int64_t end) {
  alignas(64) float total[kColumnSumWidth] = {};
  const int64_t width = end - begin;
  switch (sum.x_type) {
    case ElementType::kF32:
      Sum<float>(sum, begin, width, total);
      break;
    case ElementType::kBF16:
      Sum<uint16_t>(sum, begin, width, total);
      break;
    case ElementType::kF16:
      if constexpr (kHasFloat16) Sum<Float16Bits>(sum, begin, width, total);
      break;
  }
  switch (sum.y_type) {
    case ElementType::kF32:
      Store(total, width, sum.accumulate, static_cast<float*>(sum.y) + begin);
      break;
    case ElementType::kBF16:
      Store(total, width, sum.accumulate,
            static_cast<uint16_t*>(sum.y) + begin);
      break;
    case ElementType::kF16:
      if constexpr (kHasFloat16)
        Store(total, width, sum.accumulate,
              static_cast<Float16Bits*>(sum.y) + begin);
      break;
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
