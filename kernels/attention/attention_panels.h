// Operands of the products within a block of attention, for sources compiled
// with SG_CPU_TARGET defined (kernels/cpu/target.h): FP32 numbers or, with
// SG_BF16_PAIRS, BF16 numbers for AVX-512 BF16 or, with SG_AMX as well, for
// AMX, which take scores and their gradients rounded to BF16.
//
// Operands are matrices of Elements: FP32 numbers, or pairs of BF16 numbers
// that follow each other along what is summed over.
//
// Note: layouts. "Panels" are columns of a matrix, kPanel at a time: element
// (p, c) of a matrix of at most kBlock rows is at (c / kPanel) * stride + p *
// kPanel + c % kPanel. A micro-kernel keeps kMicroRows x kPanel sums in
// registers; the right operand is one panel, elements of the left one are
// broadcast, or are rows of tiles, so panels serve as left operands too.
//
// What is summed over ends with whole kUnits of elements: those behind the end
// are zeros. Other rows and columns behind the end of a tile hold anything:
// what is computed from them is not stored.
#ifndef KERNELS_ATTENTION_ATTENTION_PANELS_H_
#define KERNELS_ATTENTION_ATTENTION_PANELS_H_

#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_block.h"
#include "kernels/cpu/vector.h"
#include "kernels/embedding/rotate.h"
#if defined(SG_BF16_PAIRS)
#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/pairs.h"
#endif

namespace shardgraph::SG_CPU_TARGET {
namespace {

constexpr int64_t kBlock = 96;
constexpr int kPanel = 2 * kWidth;
#if defined(SG_AMX)
constexpr int kMicroRows = 32;
#elif defined(__AVX512F__)
constexpr int kMicroRows = 12;
#else
constexpr int kMicroRows = 6;
#endif

static_assert(kBlock % kMicroRows == 0 && kBlock % kPanel == 0);
static_assert(kMaxHeadWidth % kPanel == 0);

#if defined(SG_BF16_PAIRS)
typedef uint32_t Element;        // as those of Pairs
constexpr int64_t kNumbers = 2;  // of an element
#else
typedef float Element;
constexpr int64_t kNumbers = 1;
#endif
#if defined(SG_AMX)
constexpr int64_t kUnit = 16;  // a row of a tile
#else
constexpr int64_t kUnit = 1;
#endif
static_assert(kBlock % (kUnit * kNumbers) == 0 && kPanel % kUnit == 0);

// From one panel to the next: of left operands, whose elements are numbers of a
// row, and of right ones, whose elements are numbers of a column.
constexpr int64_t kLeftStride = kBlock * kPanel;
constexpr int64_t kRightStride = kBlock / kNumbers * kPanel;

// Blocks that share what is packed for them, on 2 MiB of stack.
constexpr int kQueryBlocks = 4;
constexpr int kKeyBlocks = kNumbers == 1 ? 2 : 4;
static_assert(kAttentionQueries == kQueryBlocks * kBlock);

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
// Elements that hold so many numbers, in whole units.
int64_t ElementsOf(int64_t numbers) {
  constexpr int64_t kNumbersOfUnit = kNumbers * kUnit;
  return (numbers + kNumbersOfUnit - 1) / kNumbersOfUnit * kUnit;
}

// A matrix of a block's width at most, in panels.
struct Panels {
  alignas(64) Element data[kMaxHeadWidth * kBlock / kNumbers];
};
// Scores and the like: number (r, c) at r * kBlock + c.
struct Square {
  alignas(64) float data[kBlock * kBlock];
};

// Rows of a head are far apart: they are asked for so many rows early.
constexpr int64_t kAhead = 8;

// Asks for row t of a head, for the first-level cache or the second.
template <int kLevel = 1>
SG_VECTOR_INLINE void PrefetchRow(const AttentionHead& head,
                                  const HeadRows& rows, int64_t t) {
  const int64_t size = head.bf16 ? 2 : 4;
  const char* const row =
      static_cast<const char*>(rows.data) + t * rows.stride * size;
  for (int64_t byte = 0; byte < head.width * size; byte += 64)
    __builtin_prefetch(row + byte, 0, kLevel == 1 ? 3 : 2);
}

// Turns row t by its position into `to`, or back.
SG_VECTOR_INLINE void TurnRow(const AttentionHead& head, const void* from,
                              int64_t t, bool inverse, void* to) {
  const int64_t half = head.width / 2;
  const float* const cosines = head.rotary + t * head.width;
  const float sign = inverse ? -1 : 1;
  if (head.bf16) {
    RotateHead(static_cast<const uint16_t*>(from), static_cast<uint16_t*>(to),
               half, cosines, cosines + half, sign);
  } else {
    RotateHead(static_cast<const float*>(from), static_cast<float*>(to), half,
               cosines, cosines + half, sign);
  }
}

// Rows of a block that were turned.
struct TurnedRows {
  static constexpr int64_t kBytes = 4 / kNumbers;  // of a number at most
  alignas(64) char data[kBlock * kMaxHeadWidth * kBytes];
};

// Rows [t, t + n) of q or k as they are to be packed: turned if there is
// something to turn them by, else where they are.
HeadRows Turned(const AttentionHead& head, const HeadRows& rows, int64_t t,
                int64_t n, TurnedRows* turned) {
  const int64_t size = head.bf16 ? 2 : 4;
  char* from = static_cast<char*>(rows.data) + t * rows.stride * size;
  if (head.rotary == nullptr) return {from, rows.stride};
  char* to = turned->data;
  for (int64_t p = 0; p < n; ++p) {
    if (p + kAhead < n) PrefetchRow(head, rows, t + p + kAhead);
    TurnRow(head, from, t + p, /*inverse=*/false, to);
    from += rows.stride * size;
    to += head.width * size;
  }
  return {turned->data, head.width};
}

#if defined(SG_BF16_PAIRS)

// Rows [t, t + n) of a head, which is BF16, as left operands: elements are
// pairs within a row.
void PackLeft(const AttentionHead& head, const HeadRows& rows, int64_t t,
              int64_t n, Panels* panels) {
  const uint16_t* row =
      static_cast<const uint16_t*>(rows.data) + t * rows.stride;
  constexpr int64_t kNumbersOfPanel = kPanel * kNumbers;
  for (int64_t p = 0; p < n; ++p, row += rows.stride) {
    if (p + kAhead < n) PrefetchRow(head, rows, t + p + kAhead);
    Element* to = panels->data + p * kPanel;
    int64_t d = 0;
    for (; d + kNumbersOfPanel <= head.width;
         d += kNumbersOfPanel, to += kLeftStride)
      std::memcpy(to, row + d, kPanel * sizeof(Element));
    const int64_t whole = (head.width - d) / kNumbers;
    std::memcpy(to, row + d, whole * sizeof(Element));
    const int64_t end = ElementsOf(head.width - d);
    for (int64_t e = whole; e < end; ++e) to[e] = 0;
    if (head.width % kNumbers != 0) to[whole] = row[head.width - 1];
  }
}

// The same as right operands: elements are pairs of rows.
void PackRight(const AttentionHead& head, const HeadRows& rows, int64_t t,
               int64_t n, Panels* panels) {
  alignas(64) static constexpr uint16_t kZeros[kMaxHeadWidth] = {};
  const auto row_of = [&](int64_t p) {
    return static_cast<const uint16_t*>(rows.data) + (t + p) * rows.stride;
  };
  for (int64_t p = 0; p < ElementsOf(n) * kNumbers; p += kNumbers) {
    for (int64_t k = p + kAhead; k < Min(p + kAhead + kNumbers, n); ++k)
      PrefetchRow(head, rows, t + k);
    const uint16_t* const first = p < n ? row_of(p) : kZeros;
    const uint16_t* const second = p + 1 < n ? row_of(p + 1) : kZeros;
    Element* const to = panels->data + p / kNumbers * kPanel;
    int64_t d = 0;
    for (; d + kWidth <= head.width; d += kWidth) {
      const Pairs pairs =
          (Pairs)LoadVector(second + d) | (Pairs)LoadVector(first + d) >> 16;
      std::memcpy(to + d / kPanel * kRightStride + d % kPanel, &pairs,
                  sizeof(pairs));
    }
    for (; d < head.width; ++d) {
      to[d / kPanel * kRightStride + d % kPanel] =
          first[d] | static_cast<uint32_t>(second[d]) << 16;
    }
  }
}

// Rows that serve as both.
struct BothPanels {
  Panels left, right;
};
void Pack(const AttentionHead& head, const HeadRows& rows, int64_t t, int64_t n,
          BothPanels* panels) {
  PackLeft(head, rows, t, n, &panels->left);
  PackRight(head, rows, t, n, &panels->right);
}

#else

template <typename T>
SG_VECTOR_INLINE void PackRows(const AttentionHead& head, const HeadRows& rows,
                               int64_t t, int64_t n, Panels* panels) {
  const T* row = static_cast<const T*>(rows.data) + t * rows.stride;
  const int64_t width = head.width;
  for (int64_t p = 0; p < n; ++p, row += rows.stride) {
    if (p + kAhead < n) PrefetchRow(head, rows, t + p + kAhead);
    float* to = panels->data + p * kPanel;
    int64_t d = 0;
    for (; d + kPanel <= width; d += kPanel, to += kLeftStride) {
      StoreVector(LoadVector(row + d), to);
      StoreVector(LoadVector(row + d + kWidth), to + kWidth);
    }
    if (d == width) continue;
    for (int64_t c = 0; c < kPanel; ++c)
      to[c] = d + c < width ? LoadFloat(row[d + c]) : 0.0f;
  }
}

// Rows [t, t + n) of a head: as left operands, as right ones, as both.
void PackLeft(const AttentionHead& head, const HeadRows& rows, int64_t t,
              int64_t n, Panels* panels) {
  if (head.bf16) {
    PackRows<uint16_t>(head, rows, t, n, panels);
  } else {
    PackRows<float>(head, rows, t, n, panels);
  }
}
void PackRight(const AttentionHead& head, const HeadRows& rows, int64_t t,
               int64_t n, Panels* panels) {
  PackLeft(head, rows, t, n, panels);
}
struct BothPanels {
  Panels left;
  const Panels& right = left;
};
void Pack(const AttentionHead& head, const HeadRows& rows, int64_t t, int64_t n,
          BothPanels* panels) {
  PackLeft(head, rows, t, n, &panels->left);
}

#endif  // SG_BF16_PAIRS

// The panels of the transposed matrix: `width` rows, n columns. A panel of it
// has room for kMaxHeadWidth rows. What is multiplied with it is multiplied
// with `factor` as well.
struct TransposedPanels {
  static constexpr int64_t kStride = kMaxHeadWidth / kNumbers * kPanel;
  float factor;
  alignas(64) Element data[kBlock / kPanel * kStride];
};

void Transpose(const Panels& panels, int64_t n, int64_t width, float factor,
               TransposedPanels* transposed) {
  transposed->factor = factor;
  // Pairs are not scaled: their products are.
  const Element scale = kNumbers == 1 ? static_cast<Element>(factor) : 1;
  typedef Element Four __attribute__((vector_size(16), aligned(4), may_alias));
  const auto low = [](Four a, Four b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  };
  const auto high = [](Four a, Four b) {
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  };
  // Four by four; rows and columns behind the end are there.
  for (int64_t d = 0; d < ElementsOf(width); d += 4) {
    const Element* from = panels.data + d / kPanel * kLeftStride + d % kPanel;
    for (int64_t i = 0; i < n; i += 4) {
      Four row[4];
      for (int k = 0; k < 4; ++k) {
        row[k] =
            *reinterpret_cast<const Four*>(from + (i + k) * kPanel) * scale;
      }
      const Four w = low(row[0], row[2]);
      const Four x = high(row[0], row[2]);
      const Four y = low(row[1], row[3]);
      const Four z = high(row[1], row[3]);
      Four* const to = reinterpret_cast<Four*>(
          transposed->data + i / kPanel * TransposedPanels::kStride +
          d * kPanel + i % kPanel);
      to[0] = low(w, y);
      to[kPanel / 4] = high(w, y);
      to[2 * kPanel / 4] = low(x, z);
      to[3 * kPanel / 4] = high(x, z);
    }
  }
}

// Left operands that a square holds, row r of them at data + r * kRow, elements
// kStep apart.
struct LeftByRows {
  static constexpr int kRow = kBlock / kNumbers, kStep = 1;
  const Element* data;
};
struct LeftByColumns {
  static constexpr int kRow = 1, kStep = kBlock;
  const Element* data;
};

#if defined(SG_BF16_PAIRS)

// Half a square: kBlock x kBlock numbers.
struct HalfSquare {
  alignas(64) Element data[kBlock * kBlock / kNumbers];
};

// Elements of 16 columns of a square from `from` on: its first row and the next
// one, of which `rows` exist, others being zeros.
SG_VECTOR_INLINE Pairs PairsOfRows(const float* from, int64_t rows) {
  const Vector none = {};
  const Vector first = rows > 0 ? LoadVector(from) : none;
  const Vector second = rows > 1 ? LoadVector(from + kBlock) : none;
  return PairHalves(RoundToBf16(first, second));
}

// `square` transposed, its rows being summed over.
#if defined(SG_AMX)
LeftByRows SumOverRows(const Square& square, int64_t rows, int64_t columns,
                       HalfSquare* half) {
  for (int64_t r = 0; r < rows; r += kNumbers * kPairs) {
    for (int64_t c = 0; c < columns; c += kPairs) {
      Pairs pairs[kPairs];
      for (int i = 0; i < kPairs; ++i) {
        const int64_t row = r + i * kNumbers;
        pairs[i] = PairsOfRows(square.data + row * kBlock + c, rows - row);
      }
      TransposePairs(pairs);
      for (int i = 0; i < kPairs; ++i) {
        std::memcpy(half->data + (c + i) * LeftByRows::kRow + r / kNumbers,
                    &pairs[i], sizeof(Pairs));
      }
    }
  }
  return {half->data};
}
#else
LeftByColumns SumOverRows(const Square& square, int64_t rows, int64_t columns,
                          HalfSquare* half) {
  for (int64_t r = 0; r < rows; r += kNumbers) {
    Element* const to = half->data + r / kNumbers * kBlock;
    for (int64_t c = 0; c < columns; c += kPairs) {
      const Pairs pairs = PairsOfRows(square.data + r * kBlock + c, rows - r);
      std::memcpy(to + c, &pairs, sizeof(pairs));
    }
  }
  return {half->data};
}
#endif

// `square`, its columns being summed over; those behind the last one up to
// whole units must be zeros.
LeftByRows SumOverColumns(const Square& square, int64_t rows, int64_t columns,
                          HalfSquare* half) {
  static_assert(kBlock % (2 * kWidth) == 0);
  for (int64_t r = 0; r < rows; ++r) {
    const float* const from = square.data + r * kBlock;
    Element* const to = half->data + r * LeftByRows::kRow;
    for (int64_t c = 0; c < columns; c += 2 * kWidth) {
      const Pairs pairs =
          RoundToBf16(LoadVector(from + c), LoadVector(from + c + kWidth));
      std::memcpy(to + c / kNumbers, &pairs, sizeof(pairs));
    }
  }
  return {half->data};
}

#else

struct HalfSquare {};  // nothing has to be converted
LeftByColumns SumOverRows(const Square& square, int64_t, int64_t, HalfSquare*) {
  return {square.data};
}
LeftByRows SumOverColumns(const Square& square, int64_t, int64_t, HalfSquare*) {
  return {square.data};
}

#endif  // SG_BF16_PAIRS

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_ATTENTION_ATTENTION_PANELS_H_
