// Products of BF16 operands in pairs along k, for sources compiled with
// SG_CPU_TARGET defined (kernels/cpu/target.h): packing and the order of
// blocks, around the instructions of one processor.
//
// A class `Block` gives what is theirs; a thread constructs one before its
// blocks and destroys it after them:
//
//   static constexpr int kRows
//     Rows of a block.
//   static constexpr int64_t kMaxRows
//     Of a tile at most: a multiple of kRows and of kTile.
//   static constexpr int64_t kBlockDepth
//     Of k between loads and stores of sums.
//   static bool InPlace(int64_t row_bytes)
//     Whether rows of a that lie so far apart are best read where they are,
//     kRows of them at once.
//   static constexpr bool kTakesAcross
//     Whether rows of a that lie side by side in memory stay so, in pairs,
//     instead of being transposed.
//   void Multiply(int64_t steps, const PairRows& a, const char* b,
//                 const float* sums, float* out, FetchedAhead* ahead)
//     out = a b (+ sums) over `steps` times kDepth of k: kRows rows of kColumns
//     sums, one behind the other. b is as PackPanel leaves it; sums may be
//     null, or out. Each step fetches the next portion of `ahead`.
#ifndef KERNELS_MATMUL_GEMM_PAIRS_H_
#define KERNELS_MATMUL_GEMM_PAIRS_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/pairs.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/matmul/gemm_ahead.h"
#include "kernels/matmul/gemm_store.h"
#include "kernels/matmul/gemm_tile.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

constexpr int kTile = 16;          // dwords in a row of a packed tile; its rows
constexpr int kDepth = 2 * kTile;  // BF16 elements in a row
constexpr int kColumns = 2 * kTile;  // of a block
constexpr int64_t kTileBytes = 64 * kTile;

typedef uint16_t Words __attribute__((vector_size(32)));

// Rows of a: pair p of row i is at data + i * stride + p * 4 bytes, or, across,
// at data + i * 4 + p * stride.
struct PairRows {
  const char* data = nullptr;
  int64_t stride = 0;
  bool across = false;

  PairRows From(int64_t row) const {
    return {data + row * (across ? 4 : stride), stride, across};
  }
};

// What is fetched while a block is computed.
struct FetchedAhead {
  Ahead<Fetched::kToRead> b;   // what the next blocks multiply
  Ahead<Fetched::kToWrite> c;  // where this one is stored

  void Fetch() {
    b.Fetch();
    c.Fetch();
  }
};

constexpr int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t RoundUp(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

// Sixteen elements of two rows, paired.
SG_VECTOR_INLINE void Pair(const uint16_t* even, const uint16_t* odd,
                           Pairs* out) {
  Words low, high;
  std::memcpy(&low, even, sizeof(low));
  std::memcpy(&high, odd, sizeof(high));
  *out = __builtin_convertvector(low, Pairs) |
         __builtin_convertvector(high, Pairs) << 16;
}

// A matrix of BF16: element (i, p), p along k.
struct Lines {
  const uint16_t* data;
  int64_t line_stride;
  int64_t depth_stride;  // one of the two is 1

  const uint16_t* At(int64_t i, int64_t p) const {
    return data + i * line_stride + p * depth_stride;
  }
};

// Memory is asked for so many elements of a line early, or so many lines.
constexpr int64_t kAhead = 4 * kDepth;
constexpr int64_t kAheadAcross = 8;

// Sixteen lines from i on, kDepth elements of each from p on, as dwords:
// rows[line][pair of elements], or, transposed, rows[pair][line].
template <bool kTransposed>
SG_VECTOR_INLINE void LoadLines(const Lines& lines, int64_t i, int64_t p,
                                Pairs* rows) {
  if (lines.depth_stride == 1) {
    for (int l = 0; l < kTile; ++l) {
      const uint16_t* const line = lines.At(i + l, p);
      __builtin_prefetch(line + kAhead);
      std::memcpy(&rows[l], line, sizeof(Pairs));
    }
  } else {
    for (int t = 0; t < kTile; ++t) {
      Pair(lines.At(i, p + 2 * t), lines.At(i, p + 2 * t + 1), &rows[t]);
    }
  }
  if (kTransposed == (lines.depth_stride == 1)) TransposePairs(rows);
}

// The same where only `count` lines and `depth` elements exist: others are
// zeros.
template <bool kTransposed>
void LoadSomeLines(const Lines& lines, int64_t i, int64_t p, int64_t count,
                   int64_t depth, Pairs* rows) {
  uint16_t elements[kTile][kDepth] = {};
  for (int64_t l = 0; l < count; ++l) {
    for (int64_t q = 0; q < depth; ++q)
      elements[l][q] = *lines.At(i + l, p + q);
  }
  std::memcpy(rows, elements, sizeof(elements));
  if (kTransposed) TransposePairs(rows);
}

// One tile of 16 lines of `size` that are left, kDepth elements of `depth` that
// are left; rows of `out` lie `stride` bytes apart.
template <bool kTransposed>
void PackTile(const Lines& lines, int64_t i, int64_t p, int64_t size,
              int64_t depth, char* out, int64_t stride) {
  Pairs rows[kTile];
  if (size >= kTile && depth >= kDepth) {
    LoadLines<kTransposed>(lines, i, p, rows);
  } else {
    LoadSomeLines<kTransposed>(lines, i, p, size < 0 ? 0 : Smaller(size, kTile),
                               Smaller(depth, kDepth), rows);
  }
  for (int r = 0; r < kTile; ++r)
    std::memcpy(out + r * stride, &rows[r], sizeof(Pairs));
}

// `depth` of k from p on of kColumns columns of b from n on.
void PackPanel(const GemmProblem& problem, int64_t n, int64_t p, int64_t depth,
               char* out) {
  const Lines columns = {static_cast<const uint16_t*>(problem.b.data),
                         problem.b.column_stride, problem.b.row_stride};
  for (int64_t q = 0; q < depth; q += kDepth) {
    for (int h = 0; h < kColumns; h += kTile) {
      PackTile<true>(columns, n + h, p + q, problem.n - n - h, depth - q, out,
                     64);
      out += kTileBytes;
    }
  }
}

// Rows of a as blocks read them, `stride` elements apart; rows up to `padded`
// and on to a multiple of kTile are zeros.
void PackA(const GemmProblem& problem, int64_t m, int64_t rows, int64_t padded,
           int64_t p, int64_t depth, int64_t stride, uint16_t* out) {
  const Lines lines = {static_cast<const uint16_t*>(problem.a.data),
                       problem.a.row_stride, problem.a.column_stride};
  for (int64_t i = 0; i < padded; i += kTile) {
    for (int64_t q = 0; q < depth; q += kDepth) {
      PackTile<false>(lines, m + i, p + q, rows - i, depth - q,
                      reinterpret_cast<char*>(out + i * stride + q),
                      stride * 2);
    }
  }
}

// The same across: pair p of row i at out[p * stride + i], for rows of a that
// lie side by side.
void PackAcross(const GemmProblem& problem, int64_t m, int64_t rows,
                int64_t padded, int64_t p, int64_t depth, int64_t stride,
                uint32_t* out) {
  const Lines lines = {static_cast<const uint16_t*>(problem.a.data),
                       problem.a.row_stride, problem.a.column_stride};
  for (int64_t q = 0; q < RoundUp(depth, kDepth); q += 2) {
    uint32_t* const to = out + q / 2 * stride;
    for (int64_t i = 0; i < padded; i += kTile) {
      Pairs pairs = {};
      if (i + kTile <= rows && q + 2 <= depth) {
        __builtin_prefetch(lines.At(m + i, p + q + kAheadAcross));
        Pair(lines.At(m + i, p + q), lines.At(m + i, p + q + 1), &pairs);
      } else {
        uint16_t elements[kTile][2] = {};
        for (int64_t l = 0; l < Smaller(kTile, rows - i); ++l) {
          for (int64_t k = 0; k < Smaller(2, depth - q); ++k)
            elements[l][k] = *lines.At(m + i + l, p + q + k);
        }
        std::memcpy(&pairs, elements, sizeof(pairs));
      }
      std::memcpy(to + i, &pairs, sizeof(pairs));
    }
  }
}

void Pack(const GemmProblem& problem, int64_t n, int64_t columns,
          void* packed) {
  char* out = static_cast<char*>(packed);
  for (int64_t j = 0; j < columns; j += kColumns) {
    PackPanel(problem, n + j, 0, problem.k, out);
    out += RoundUp(problem.k, kDepth) * kColumns * 2;
  }
}

template <typename Block>
void Run(const GemmProblem& problem, const GemmTile& tile, const void* packed) {
  constexpr int kRows = Block::kRows;
  constexpr int64_t kBlockDepth = Block::kBlockDepth;
  // Rows of packed a are this far apart: not a power of two.
  constexpr int64_t kStride = kBlockDepth + kDepth;
  constexpr int64_t kAcrossStride = Block::kMaxRows + kTile;
  constexpr int64_t kPackedElements =
      Larger(Block::kMaxRows * kStride, kBlockDepth * kAcrossStride);
  static_assert(Block::kMaxRows % kRows == 0 && Block::kMaxRows % kTile == 0);
  static_assert(Block::kMaxRows <= kGemmMaxRows && kBlockDepth % kDepth == 0);
  alignas(64) uint16_t packed_a[kPackedElements];
  alignas(64) char packed_b[kBlockDepth * kColumns * 2];
  alignas(64) float sums[kGemmMaxElements];
  alignas(64) float values[kRows * kColumns];
  Block block_kernel;
  const int64_t c_bytes = problem.c_bf16 ? 2 : 4;
  const int64_t panel_bytes = RoundUp(problem.k, kDepth) * kColumns * 2;
  const int64_t sums_of_block = problem.k > kBlockDepth ? kRows * kColumns : 0;
  int64_t p = 0;
  do {  // once for k = 0
    const int64_t depth = Smaller(problem.k - p, kBlockDepth);
    const int64_t steps = RoundUp(depth, kDepth) / kDepth;
    const bool last = p + depth == problem.k;
    PairRows a = {reinterpret_cast<const char*>(packed_a), kStride * 2};
    if (Block::kTakesAcross && problem.a.column_stride != 1) {
      a.across = true;
      a.stride = kAcrossStride * sizeof(uint32_t);
      PackAcross(problem, tile.m, tile.rows, RoundUp(tile.rows, kRows), p,
                 depth, kAcrossStride, reinterpret_cast<uint32_t*>(packed_a));
    } else if (problem.a.column_stride == 1 && tile.rows % kRows == 0 &&
               depth % kDepth == 0 &&
               Block::InPlace(problem.a.row_stride * 2)) {
      a.stride = problem.a.row_stride * 2;
      a.data =
          static_cast<const char*>(problem.a.data) + tile.m * a.stride + p * 2;
    } else {
      PackA(problem, tile.m, tile.rows, RoundUp(tile.rows, kRows), p, depth,
            kStride, packed_a);
    }
    const int64_t row_blocks = (tile.rows + kRows - 1) / kRows;
    float* sum = sums;
    for (int64_t j = 0; j < tile.columns; j += kColumns) {
      const char* b = packed_b;
      FetchedAhead ahead;
      if (packed == nullptr) {
        PackPanel(problem, tile.n + j, p, depth, packed_b);
      } else {
        b = static_cast<const char*>(packed) + j / kColumns * panel_bytes +
            p / kDepth * 2 * kTileBytes;
        if (j + kColumns < tile.columns) {
          ahead.b = {b + panel_bytes, 0, 1, steps * 2 * kTileBytes,
                     row_blocks * steps};
        }
      }
      alignas(64) float bias[kColumns];
      if (last) LoadBias<kColumns>(problem, tile.n + j, bias);
      for (int64_t i = 0; i < tile.rows; i += kRows) {
        const GemmBlock block = BlockOf<kRows, kColumns>(problem, tile, i, j);
        if (last) {
          ahead.c = {block.c, tile.c_row_stride * c_bytes, block.rows,
                     block.columns * c_bytes, steps};
        }
        block_kernel.Multiply(steps, a.From(i), b, p == 0 ? nullptr : sum,
                              last ? values : sum, &ahead);
        if (last) StoreBlock<kColumns>(problem, values, bias, block);
        sum += sums_of_block;
      }
    }
    p += depth;
  } while (p < problem.k);
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_MATMUL_GEMM_PAIRS_H_
