// Products within a block of attention, for sources compiled with SG_CPU_TARGET
// defined (kernels/cpu/target.h): of FP32 numbers or, with SG_BF16_PAIRS, of
// BF16 numbers by AVX-512 BF16, which takes scores and their gradients rounded
// to BF16.
//
// Operands are matrices of Elements: FP32 numbers, or pairs of BF16 numbers
// that follow each other along what is summed over.
//
// Note: layouts. "Panels" are columns of a matrix, kPanel at a time: element
// (p, c) of a matrix of at most kBlock rows is at (c / kPanel) * kPanelStride +
// p * kPanel + c % kPanel. A micro-kernel keeps kMicroRows x kPanel sums in
// registers; the right operand is one panel, elements of the left one are
// broadcast, so panels serve as left operands too. Rows and columns behind the
// end of a tile hold anything: what is computed from them is not stored.
#ifndef KERNELS_ATTENTION_ATTENTION_PRODUCTS_H_
#define KERNELS_ATTENTION_ATTENTION_PRODUCTS_H_

#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_block.h"
#include "kernels/cpu/vector.h"
#if defined(SG_BF16_PAIRS)
#include "kernels/cpu/dot_pairs.h"
#endif

namespace shardgraph::SG_CPU_TARGET {
namespace {

constexpr int64_t kBlock = 96;
constexpr int kPair = 2;  // blocks that share what is packed
static_assert(kAttentionQueries == kPair * kBlock);
constexpr int kPanel = 2 * kWidth;
#if defined(__AVX512F__)
constexpr int kMicroRows = 12;
#else
constexpr int kMicroRows = 6;
#endif
constexpr int64_t kPanelStride = kBlock * kPanel;
constexpr int64_t kMaxPanels = kMaxHeadWidth / kPanel;

static_assert(kBlock % kMicroRows == 0 && kBlock % kPanel == 0);
static_assert(kMaxHeadWidth % kPanel == 0);

#if defined(SG_BF16_PAIRS)
typedef uint32_t Element;  // the first of the pair in the lower half
typedef Pairs Elements;
constexpr int64_t kNumbers = 2;  // of an element
#else
typedef float Element;
typedef Vector Elements;
constexpr int64_t kNumbers = 1;
#endif
static_assert(kBlock % kNumbers == 0);

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
// Elements that hold so many numbers.
int64_t ElementsOf(int64_t numbers) {
  return (numbers + kNumbers - 1) / kNumbers;
}

// A matrix of a block's width at most, in panels.
struct Panels {
  alignas(64) Element data[kMaxPanels * kPanelStride];
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

#if defined(SG_BF16_PAIRS)

// Rows [t, t + n) of a head, which is BF16, as left operands: elements are
// pairs within a row. An odd width ends with a zero.
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
         d += kNumbersOfPanel, to += kPanelStride)
      std::memcpy(to, row + d, kPanel * sizeof(Element));
    const int64_t whole = (head.width - d) / kNumbers;
    std::memcpy(to, row + d, whole * sizeof(Element));
    if (head.width % kNumbers != 0) to[whole] = row[head.width - 1];
  }
}

// The same as right operands: elements are pairs of rows. An odd row is paired
// with zeros.
void PackRight(const AttentionHead& head, const HeadRows& rows, int64_t t,
               int64_t n, Panels* panels) {
  alignas(64) static constexpr uint16_t kZeros[kMaxHeadWidth] = {};
  const auto row_of = [&](int64_t p) {
    return static_cast<const uint16_t*>(rows.data) + (t + p) * rows.stride;
  };
  for (int64_t p = 0; p < n; p += kNumbers) {
    for (int64_t k = p + kAhead; k < Min(p + kAhead + kNumbers, n); ++k)
      PrefetchRow(head, rows, t + k);
    const uint16_t* const first = row_of(p);
    const uint16_t* const second = p + 1 < n ? row_of(p + 1) : kZeros;
    Element* const to = panels->data + p / kNumbers * kPanel;
    int64_t d = 0;
    for (; d + kWidth <= head.width; d += kWidth) {
      const Pairs pairs =
          (Pairs)LoadVector(second + d) | (Pairs)LoadVector(first + d) >> 16;
      std::memcpy(to + d / kPanel * kPanelStride + d % kPanel, &pairs,
                  sizeof(pairs));
    }
    for (; d < head.width; ++d) {
      to[d / kPanel * kPanelStride + d % kPanel] =
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
    for (; d + kPanel <= width; d += kPanel, to += kPanelStride) {
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
  static constexpr int64_t kStride = kMaxHeadWidth * kPanel;
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
    const Element* from = panels.data + d / kPanel * kPanelStride + d % kPanel;
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

#if defined(SG_BF16_PAIRS)

SG_VECTOR_INLINE Pairs PairsOf(Vector first, Vector second) {
  return (Pairs)RoundedTo<uint16_t>(first) >> 16 |
         (Pairs)RoundedTo<uint16_t>(second);
}

// Half a square: kBlock x kBlock numbers.
struct HalfSquare {
  alignas(64) Element data[kBlock * kBlock / kNumbers];
};

// `square` transposed, its rows being summed over: pairs of rows. Of an odd
// number the last row is paired with zeros.
const Element* SumOverRows(const Square& square, int64_t rows, int64_t columns,
                           HalfSquare* half) {
  for (int64_t r = 0; r < rows; r += kNumbers) {
    const float* const from = square.data + r * kBlock;
    Element* const to = half->data + r / kNumbers * kBlock;
    for (int64_t c = 0; c < columns; c += kWidth) {
      const Vector second =
          r + 1 < rows ? LoadVector(from + kBlock + c) : Vector{};
      const Pairs pairs = PairsOf(LoadVector(from + c), second);
      std::memcpy(to + c, &pairs, sizeof(pairs));
    }
  }
  return half->data;
}

// `square`, its columns being summed over; those behind the last one up to an
// even number must be zeros.
const Element* SumOverColumns(const Square& square, int64_t rows,
                              int64_t columns, HalfSquare* half) {
  for (int64_t r = 0; r < rows; ++r) {
    uint16_t* const to =
        reinterpret_cast<uint16_t*>(half->data + r * (kBlock / kNumbers));
    for (int64_t c = 0; c < columns; c += kWidth)
      StoreVector(LoadVector(square.data + r * kBlock + c), to + c);
  }
  return half->data;
}

SG_VECTOR_INLINE Elements BroadcastElement(Element element) {
  return element - Elements{};
}
SG_VECTOR_INLINE Elements LoadElements(const Element* data) {
  Elements elements;
  std::memcpy(&elements, data, sizeof(elements));
  return elements;
}
SG_VECTOR_INLINE void AddProduct(Elements a, Elements b, Vector* sum) {
  AddDotPairs(a, b, sum);
}

#else

struct HalfSquare {};  // nothing has to be converted
const Element* SumOverRows(const Square& square, int64_t, int64_t,
                           HalfSquare*) {
  return square.data;
}
const Element* SumOverColumns(const Square& square, int64_t, int64_t,
                              HalfSquare*) {
  return square.data;
}

SG_VECTOR_INLINE Elements BroadcastElement(Element element) {
  return Broadcast(element);
}
SG_VECTOR_INLINE Elements LoadElements(const Element* data) {
  return LoadVector(data);
}
SG_VECTOR_INLINE void AddProduct(Elements a, Elements b, Vector* sum) {
  *sum += a * b;
}

#endif  // SG_BF16_PAIRS

// Where sums go: rows of kPanel numbers, `stride` numbers apart, of which
// `rows` x `columns` exist.
struct SumsPlace {
  float* c;
  int64_t stride, rows, columns;
};

// c = factor * (a b) (+ c): element (i, p) of the left operand is at a[i * kRow
// + p / kPanel * kJump + p % kPanel * kStep]. A function of its own, or GCC
// runs out of registers.
template <int kRow, int kStep, int kJump>
__attribute__((noinline)) void Multiply(const Element* a, const Element* b,
                                        int64_t depth, bool add, float factor,
                                        const SumsPlace& place) {
  Vector sums[kMicroRows][2] = {};
  for (; depth > 0; depth -= kPanel, a += kJump) {
    const Element* at = a;
    for (int64_t p = 0; p < Min(kPanel, depth); ++p) {
      const Elements b0 = LoadElements(b);
      const Elements b1 = LoadElements(b + kWidth);
#pragma GCC unroll 12
      for (int i = 0; i < kMicroRows; ++i) {
        const Elements left = BroadcastElement(at[i * kRow]);
        AddProduct(left, b0, &sums[i][0]);
        AddProduct(left, b1, &sums[i][1]);
      }
      at += kStep;
      b += kPanel;
    }
  }
  const bool whole = place.rows >= kMicroRows && place.columns >= kPanel;
  alignas(64) float values[kMicroRows * kPanel];
  float* c = whole ? place.c : values;
  const int64_t stride = whole ? place.stride : kPanel;
  if (add && whole) {
#pragma GCC unroll 12
    for (int i = 0; i < kMicroRows; ++i) {
      for (int h = 0; h < 2; ++h) {
        float* const to = c + i * stride + h * kWidth;
        StoreVector(LoadVector(to) + factor * sums[i][h], to);
      }
    }
  } else {
#pragma GCC unroll 12
    for (int i = 0; i < kMicroRows; ++i) {
      for (int h = 0; h < 2; ++h)
        StoreVector(factor * sums[i][h], c + i * stride + h * kWidth);
    }
  }
  if (whole) return;
  for (int64_t i = 0; i < Min(kMicroRows, place.rows); ++i) {
    for (int64_t k = 0; k < Min(kPanel, place.columns); ++k) {
      float* const to = place.c + i * place.stride + k;
      *to = add ? *to + values[i * kPanel + k] : values[i * kPanel + k];
    }
  }
}

// c[r, n] = sum over d of left[r, d] right[d, n] for r in [0, rows), n in
// [0, columns): scores. In the panel of columns from n on only rows in
// [from(n), to(n)) are needed.
template <typename From, typename To>
SG_VECTOR_INLINE void Scores(const Panels& left, const TransposedPanels& right,
                             int64_t rows, int64_t columns, int64_t width,
                             From from, To to, Square* c) {
  const int64_t depth = ElementsOf(width);
  const float factor = kNumbers > 1 ? right.factor : 1.0f;
  for (int64_t n = 0; n < columns; n += kPanel) {
    const Element* b = right.data + n / kPanel * TransposedPanels::kStride;
    const int64_t end = Min(rows, to(n));
    for (int64_t r = from(n) / kMicroRows * kMicroRows; r < end;
         r += kMicroRows) {
      // Squares have room for whole micro-tiles.
      const SumsPlace place = {c->data + r * kBlock + n, kBlock, kMicroRows,
                               kPanel};
      Multiply<kPanel, 1, kPanelStride>(left.data + r * kPanel, b, depth,
                                        /*add=*/false, factor, place);
    }
  }
}

// c[r, d] += sum over p in [from(r), to(r)) of left(r, p) right[p, d]: what
// scores are multiplied with, as SumOverRows (kTransposed) or SumOverColumns
// gives them. Numbers that share an element with the first or the last one are
// zeros in `left`.
template <bool kTransposed, typename From, typename To>
SG_VECTOR_INLINE void AddProduct(const Element* left, const Panels& right,
                                 int64_t rows, int64_t width, From from, To to,
                                 float* c, int64_t stride) {
  constexpr int kRow = kTransposed ? 1 : kBlock / kNumbers;
  constexpr int kStep = kTransposed ? kBlock : 1;
  for (int64_t d = 0; d < width; d += kPanel) {
    const Element* b = right.data + d / kPanel * kPanelStride;
    for (int64_t r = 0; r < rows; r += kMicroRows) {
      const int64_t begin = from(r) / kNumbers, end = ElementsOf(to(r));
      if (begin >= end) continue;
      Multiply<kRow, kStep, kPanel * kStep>(
          left + r * kRow + begin * kStep, b + begin * kPanel, end - begin,
          /*add=*/true, 1, {c + r * stride + d, stride, rows - r, width - d});
    }
  }
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_ATTENTION_ATTENTION_PRODUCTS_H_
