#include "kernels/matmul/gemm_tile.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"
#include "kernels/matmul/gemm_ahead.h"
#include "kernels/matmul/gemm_store.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// The micro-kernel keeps kRows x kColumns sums in registers: 12 of 16 vector
// registers, or 24 of 32 with AVX-512.
constexpr int kRows = kWidth == 16 ? 12 : 6;
constexpr int kColumns = 2 * kWidth;

// Rows of a tile: with more, fewer columns of sums would have room.
constexpr int64_t kMaxRows = 192;

static_assert(kMaxRows % kRows == 0 && kMaxRows <= kGemmMaxRows);
static_assert(kColumns % 8 == 0);

typedef float Vector8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t Half8 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t Word8 __attribute__((vector_size(32), aligned(4), may_alias));

int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// By pointer: returning a vector would be another ABI on each target.
SG_VECTOR_INLINE void Load8(const float* data, Vector8* value) {
  *value = *reinterpret_cast<const Vector8*>(data);
}
SG_VECTOR_INLINE void Load8(const uint16_t* data, Vector8* value) {
  const Half8 bits = *reinterpret_cast<const Half8*>(data);
  *value = (Vector8)(__builtin_convertvector(bits, Word8) << 16);
}

// out[p * out_stride + i] = in[i * in_stride + p] for 8 x 8 elements.
template <typename T>
SG_VECTOR_INLINE void Transpose8(const T* in, int64_t in_stride, float* out,
                                 int64_t out_stride) {
  Vector8 r[8], s[8];
  for (int i = 0; i < 8; ++i) Load8(in + i * in_stride, &r[i]);
  for (int i = 0; i < 8; i += 2) {
    s[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    s[i + 1] =
        __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = __builtin_shufflevector(s[i], s[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 1] =
        __builtin_shufflevector(s[i], s[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    r[i + 2] =
        __builtin_shufflevector(s[i + 1], s[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    r[i + 3] =
        __builtin_shufflevector(s[i + 1], s[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (int i = 0; i < 4; ++i) {
    const Vector8 low =
        __builtin_shufflevector(r[i], r[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
    const Vector8 high =
        __builtin_shufflevector(r[i], r[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    *reinterpret_cast<Vector8*>(out + i * out_stride) = low;
    *reinterpret_cast<Vector8*>(out + (i + 4) * out_stride) = high;
  }
}

// Rows of packed a are this far apart: not a power of two, which would crowd
// them into few sets of the cache.
constexpr int64_t kStride = kGemmDepth + 16;

// Packs `rows` rows of a: out[i * kStride + p]. Rows up to a multiple of kRows
// become zeros.
template <typename T>
void PackA(const GemmMatrix& a, int64_t m, int64_t rows, int64_t p,
           int64_t depth, float* out) {
  const T* const in =
      static_cast<const T*>(a.data) + m * a.row_stride + p * a.column_stride;
  if (a.column_stride == 1) {
    constexpr int64_t kLine = 64 / sizeof(T);
    for (int64_t i = 0; i < rows; ++i) {
      const T* from = in + i * a.row_stride;
      const T* ahead = from + 4 * a.row_stride;
      float* to = out + i * kStride;
      int64_t q = 0;
      for (; q + kLine <= depth; q += kLine) {
        __builtin_prefetch(ahead + q);
        for (int64_t j = 0; j < kLine; j += kWidth)
          StoreVector(LoadVector(from + q + j), to + q + j);
      }
      for (; q < depth; ++q) to[q] = LoadFloat(from[q]);
    }
  } else {
    // Two blocks fill cache lines of `out`.
    const int64_t full = rows / 8 * 8;
    int64_t q = 0;
    for (; q + 8 <= depth; q += 16) {
      const int blocks = q + 16 <= depth ? 2 : 1;
      const T* from = in + q * a.column_stride;
      const T* ahead = from + 16 * a.column_stride;
      for (int64_t i = 0; i < full; i += 8) {
        if (i % (64 / sizeof(T)) == 0) {
          for (int h = 0; h < 16; ++h)
            __builtin_prefetch(ahead + h * a.column_stride + i);
        }
        for (int h = 0; h < 8 * blocks; h += 8) {
          Transpose8(from + h * a.column_stride + i, a.column_stride,
                     out + i * kStride + q + h, kStride);
        }
      }
    }
    const int64_t whole = depth / 8 * 8;
    for (int64_t i = 0; i < rows; ++i) {
      for (q = i < full ? whole : 0; q < depth; ++q)
        out[i * kStride + q] = LoadFloat(in[q * a.column_stride + i]);
    }
  }
  const int64_t padded = RoundUp(rows, kRows);
  std::memset(out + rows * kStride, 0,
              (padded - rows) * kStride * sizeof(float));
}

// One panel of b: out[p * kColumns + j]; missing columns are zeros.
template <typename T>
void PackB(const GemmMatrix& b, int64_t n, int64_t columns, int64_t p,
           int64_t depth, float* out) {
  const T* const in =
      static_cast<const T*>(b.data) + p * b.row_stride + n * b.column_stride;
  const int64_t depth_stride = b.row_stride;
  const int64_t column_stride = b.column_stride;
  if (columns < kColumns) {
    for (int64_t q = 0; q < depth; ++q) {
      float* to = out + q * kColumns;
      for (int64_t j = 0; j < columns; ++j)
        to[j] = LoadFloat(in[q * depth_stride + j * column_stride]);
      for (int64_t j = columns; j < kColumns; ++j) to[j] = 0;
    }
  } else if (column_stride == 1) {
    for (int64_t q = 0; q < depth; ++q) {
      for (int j = 0; j < kColumns; j += kWidth)
        StoreVector(LoadVector(in + q * depth_stride + j),
                    out + q * kColumns + j);
    }
  } else {
    int64_t q = 0;
    for (; q + 8 <= depth; q += 8) {
      for (int j = 0; j < kColumns; j += 8) {
        Transpose8(in + j * column_stride + q, column_stride,
                   out + q * kColumns + j, kColumns);
      }
    }
    for (; q < depth; ++q) {
      for (int j = 0; j < kColumns; ++j)
        out[q * kColumns + j] = LoadFloat(in[q + j * column_stride]);
    }
  }
}

void PackPanel(const GemmProblem& problem, int64_t n, int64_t p, int64_t depth,
               float* out) {
  const int64_t columns = Smaller(kColumns, problem.n - n);
  if (problem.b.bf16) {
    PackB<uint16_t>(problem.b, n, columns, p, depth, out);
  } else {
    PackB<float>(problem.b, n, columns, p, depth, out);
  }
}

// What is fetched while a block is computed.
struct FetchedAhead {
  Ahead<Fetched::kToRead> a, b;      // what the next blocks multiply
  Ahead<Fetched::kToWrite> sums, c;  // what this one adds to, and stores to

  void Fetch() {
    a.Fetch();
    b.Fetch();
    sums.Fetch();
    c.Fetch();
  }
};
// Each so much of k.
constexpr int64_t kFetchDepth = kWidth == 16 ? 8 : 16;

// Adds `depth` of k to the sums of one kRows x kColumns block.
SG_VECTOR_INLINE void AddProducts(int64_t depth, const float* a, const float* b,
                                  Vector sum[kRows][2]) {
#pragma GCC unroll 4
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b0 = LoadVector(b);
    const Vector b1 = LoadVector(b + kWidth);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      sum[i][0] += a[i * kStride] * b0;
      sum[i][1] += a[i * kStride] * b1;
    }
    ++a;
    b += kColumns;
  }
}

// out = a b (+ sums) for one block, row by row. A function of its own, or GCC
// runs out of registers.
__attribute__((noinline)) void Micro(int64_t depth, const float* a,
                                     const float* b, const float* sums,
                                     float* out, FetchedAhead* ahead) {
  Vector sum[kRows][2] = {};
  for (; depth >= kFetchDepth; depth -= kFetchDepth) {
    ahead->Fetch();
    AddProducts(kFetchDepth, a, b, sum);
    a += kFetchDepth;
    b += kFetchDepth * kColumns;
  }
  AddProducts(depth, a, b, sum);
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const int64_t at = i * kColumns + h * kWidth;
      if (sums != nullptr) sum[i][h] += LoadVector(sums + at);
      StoreVector(sum[i][h], out + at);
    }
  }
}

// `depth` of k from p on of the tile's rows of a, in `times` portions.
Ahead<Fetched::kToRead> AheadA(const GemmProblem& problem, const GemmTile& tile,
                               int64_t p, int64_t depth, int64_t times) {
  const GemmMatrix& a = problem.a;
  const int64_t size = a.bf16 ? 2 : 4;
  const char* const data = static_cast<const char*>(a.data) +
                           (tile.m * a.row_stride + p * a.column_stride) * size;
  if (depth <= 0) return {};
  if (a.column_stride == 1)
    return {data, a.row_stride * size, tile.rows, depth * size, times};
  return {data, a.column_stride * size, depth, tile.rows * size, times};
}

void Pack(const GemmProblem& problem, int64_t n, int64_t columns,
          void* packed) {
  float* out = static_cast<float*>(packed);
  for (int64_t j = 0; j < columns; j += kColumns) {
    PackPanel(problem, n + j, 0, problem.k, out);
    out += problem.k * kColumns;
  }
}

void Run(const GemmProblem& problem, const GemmTile& tile, const void* packed) {
  alignas(64) float packed_a[kMaxRows * kStride];
  alignas(64) float packed_b[kColumns * kGemmDepth];
  alignas(64) float sums[kGemmMaxElements];
  alignas(64) float values[kRows * kColumns] = {};
  const int64_t c_bytes = problem.c_bf16 ? 2 : 4;
  const int64_t sums_of_block = problem.k > kGemmDepth ? kRows * kColumns : 0;
  int64_t p = 0;
  do {  // once for k = 0
    const int64_t depth = Smaller(problem.k - p, kGemmDepth);
    const bool last = p + depth == problem.k;
    if (problem.a.bf16) {
      PackA<uint16_t>(problem.a, tile.m, tile.rows, p, depth, packed_a);
    } else {
      PackA<float>(problem.a, tile.m, tile.rows, p, depth, packed_a);
    }
    const int64_t times = depth / kFetchDepth + 1;  // of a block
    const int64_t row_blocks = (tile.rows + kRows - 1) / kRows;
    const int64_t blocks =
        (tile.columns + kColumns - 1) / kColumns * row_blocks;
    FetchedAhead ahead;
    ahead.a =
        AheadA(problem, tile, p + depth,
               Smaller(problem.k - p - depth, kGemmDepth), blocks * times);
    float* sum = sums;
    for (int64_t j = 0; j < tile.columns; j += kColumns) {
      const float* b = packed_b;
      ahead.b = {};
      if (packed == nullptr) {
        PackPanel(problem, tile.n + j, p, depth, packed_b);
      } else {
        b = static_cast<const float*>(packed) + j * problem.k + p * kColumns;
        if (j + kColumns < tile.columns) {
          ahead.b = {b + kColumns * problem.k, 0, 1, depth * kColumns * 4,
                     row_blocks * times};
        }
      }
      alignas(64) float bias[kColumns];
      if (last) LoadBias<kColumns>(problem, tile.n + j, bias);
      for (int64_t i = 0; i < tile.rows; i += kRows) {
        const GemmBlock block = BlockOf<kRows, kColumns>(problem, tile, i, j);
        if (p > 0) ahead.sums = {sum, 0, 1, kRows * kColumns * 4, times};
        if (last) {
          ahead.c = {block.c, tile.c_row_stride * c_bytes, block.rows,
                     block.columns * c_bytes, times};
        }
        Micro(depth, packed_a + i * kStride, b, p == 0 ? nullptr : sum,
              last ? values : sum, &ahead);
        sum += sums_of_block;
        if (last) StoreBlock<kColumns>(problem, values, bias, block);
      }
    }
    p += depth;
  } while (p < problem.k);
}

}  // namespace

extern const GemmKernels kGemmKernels;  // also where no header declares it
const GemmKernels kGemmKernels = {kRows,    kColumns,   1,    sizeof(float),
                                  kMaxRows, kGemmDepth, Pack, Run};

}  // namespace shardgraph::SG_CPU_TARGET
