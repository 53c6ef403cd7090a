// How kernels of products store a block of sums, for sources of a
// cpu_target_library (kernels/cpu/target.h).
#ifndef KERNELS_MATMUL_GEMM_STORE_H_
#define KERNELS_MATMUL_GEMM_STORE_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"
#include "kernels/matmul/gemm_tile.h"
#if defined(SG_BF16_PAIRS)
#include "kernels/cpu/avx512_bf16.h"
#endif

namespace shardgraph::SG_CPU_TARGET {
namespace {

// The part of c that a block of kColumns columns gives.
struct GemmBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  void* c = nullptr;
  int64_t c_row_stride = 0;
};

// The block at (i, j) of a tile, at most kRows x kColumns.
template <int kRows, int kColumns>
GemmBlock BlockOf(const GemmProblem& problem, const GemmTile& tile, int64_t i,
                  int64_t j) {
  GemmBlock block;
  block.rows = tile.rows - i < kRows ? tile.rows - i : kRows;
  block.columns = tile.columns - j < kColumns ? tile.columns - j : kColumns;
  block.c = static_cast<char*>(tile.c) +
            (i * tile.c_row_stride + j) * (problem.c_bf16 ? 2 : 4);
  block.c_row_stride = tile.c_row_stride;
  return block;
}

// kColumns elements of the bias from column n on; zeros where there is none.
template <int kColumns>
void LoadBias(const GemmProblem& problem, int64_t n, float* bias) {
  for (int64_t j = 0; j < kColumns; ++j) {
    if (problem.bias == nullptr || n + j >= problem.n) {
      bias[j] = 0;
    } else if (problem.bias_bf16) {
      bias[j] = LoadFloat(static_cast<const uint16_t*>(problem.bias)[n + j]);
    } else {
      bias[j] = static_cast<const float*>(problem.bias)[n + j];
    }
  }
}

// `rows` rows of kColumns elements: c = values + bias (+ c).
template <int kColumns, typename T>
SG_VECTOR_INLINE void StoreRows(const float* values, const float* bias,
                                bool accumulate, int64_t rows, T* c,
                                int64_t c_stride) {
  const auto value = [&](int64_t i, int h) {
    const Vector v =
        LoadVector(values + i * kColumns + h) + LoadVector(bias + h);
    return accumulate ? LoadVector(c + i * c_stride + h) + v : v;
  };
  for (int h = 0; h < kColumns;) {
#if defined(SG_BF16_PAIRS)
    if constexpr (sizeof(T) == sizeof(uint16_t)) {
      for (int64_t i = 0; i < rows; ++i) {
        const Pairs both = RoundToBf16(value(i, h), value(i, h + kWidth));
        std::memcpy(c + i * c_stride + h, &both, sizeof(both));
      }
      h += 2 * kWidth;
      continue;
    }
#endif
    for (int64_t i = 0; i < rows; ++i)
      StoreVector(value(i, h), c + i * c_stride + h);
    h += kWidth;
  }
}

template <int kColumns, typename T>
void StoreBlockOf(const GemmProblem& problem, const float* values,
                  const float* bias, const GemmBlock& block) {
  T* const c = static_cast<T*>(block.c);
  if (block.columns == kColumns) {
    StoreRows<kColumns>(values, bias, problem.accumulate, block.rows, c,
                        block.c_row_stride);
    return;
  }
  T row[kColumns] = {};
  for (int64_t i = 0; i < block.rows; ++i) {
    T* const to = c + i * block.c_row_stride;
    for (int64_t j = 0; j < block.columns; ++j) row[j] = to[j];
    StoreRows<kColumns>(values + i * kColumns, bias, problem.accumulate, 1, row,
                        0);
    for (int64_t j = 0; j < block.columns; ++j) to[j] = row[j];
  }
}

// `values` are rows of kColumns sums; bias as loaded above.
template <int kColumns>
void StoreBlock(const GemmProblem& problem, const float* values,
                const float* bias, const GemmBlock& block) {
  if (problem.c_bf16) {
    StoreBlockOf<kColumns, uint16_t>(problem, values, bias, block);
  } else {
    StoreBlockOf<kColumns, float>(problem, values, bias, block);
  }
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_MATMUL_GEMM_STORE_H_
