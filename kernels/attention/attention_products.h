// Products within a block of attention, for sources compiled with SG_CPU_TARGET
// defined: of the operands of kernels/attention/attention_panels.h.
#ifndef KERNELS_ATTENTION_ATTENTION_PRODUCTS_H_
#define KERNELS_ATTENTION_ATTENTION_PRODUCTS_H_

#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_panels.h"
#include "kernels/cpu/vector.h"
#if defined(SG_AMX)
#include "kernels/cpu/amx.h"
#endif

namespace shardgraph::SG_CPU_TARGET {
namespace {

// Where sums go: rows of kPanel numbers, `stride` numbers apart, of which
// `rows` x `columns` exist.
struct SumsPlace {
  float* c;
  int64_t stride, rows, columns;

  bool whole() const { return rows >= kMicroRows && columns >= kPanel; }
};

// Moves a micro-tile of sums to a place that has no room for all of it.
void StorePart(const float* sums, bool add, const SumsPlace& place) {
  for (int64_t i = 0; i < Min(kMicroRows, place.rows); ++i) {
    for (int64_t k = 0; k < Min(kPanel, place.columns); ++k) {
      float* const to = place.c + i * place.stride + k;
      *to = add ? *to + sums[i * kPanel + k] : sums[i * kPanel + k];
    }
  }
}

// What products need while a block is computed: one is constructed before them
// and destroyed after them.
//
// Multiply: c = factor * (a b) or, to add, c += a b. Element (i, p) of the left
// operand is at a[i * kRow + p / kPanel * kJump + p % kPanel * kStep]; `depth`
// is a multiple of kUnit. A function of its own, or GCC runs out of registers.
#if defined(SG_AMX)

class Multiplier {
 public:
  Multiplier() {
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.rows[t] = kTile;
      config.column_bytes[t] = kTile * sizeof(float);
    }
    ConfigureTiles(config);
  }
  ~Multiplier() { ReleaseTiles(); }
  Multiplier(const Multiplier&) = delete;
  Multiplier& operator=(const Multiplier&) = delete;

  template <int kRow, int kStep, int kJump>
  __attribute__((noinline)) static void Multiply(const Element* a,
                                                 const Element* b,
                                                 int64_t depth, bool add,
                                                 float factor,
                                                 const SumsPlace& place) {
    static_assert(kStep == 1 && kMicroRows == 2 * kTile && kUnit == kTile);
    constexpr int64_t kBytes = sizeof(Element);
    const bool whole = place.whole();
    alignas(64) float values[kMicroRows * kPanel];
    float* const c = whole ? place.c : values;
    const int64_t row = whole ? place.stride : kPanel;
    const int64_t stride = row * sizeof(float);
    float* const lower_c = c + kTile * row;
    if (add && whole) {
      LoadTile<0>(c, stride);
      LoadTile<1>(c + kTile, stride);
      LoadTile<2>(lower_c, stride);
      LoadTile<3>(lower_c + kTile, stride);
    } else {
      ZeroTile<0>();
      ZeroTile<1>();
      ZeroTile<2>();
      ZeroTile<3>();
    }
    for (int64_t p = 0; p < depth; p += kUnit) {
      const Element* const at = a + p / kPanel * kJump + p % kPanel;
      LoadTile<4>(at, kRow * kBytes);
      LoadTile<6>(b, kPanel * kBytes);
      MultiplyTiles<0, 4, 6>();
      LoadTile<7>(b + kTile, kPanel * kBytes);
      MultiplyTiles<1, 4, 7>();
      LoadTile<5>(at + kTile * kRow, kRow * kBytes);
      MultiplyTiles<2, 5, 6>();
      MultiplyTiles<3, 5, 7>();
      b += kUnit * kPanel;
    }
    StoreTile<0>(c, stride);
    StoreTile<1>(c + kTile, stride);
    StoreTile<2>(lower_c, stride);
    StoreTile<3>(lower_c + kTile, stride);
    if (factor != 1) {
      for (int i = 0; i < kMicroRows; ++i) {
        for (float* at = c + i * row; at < c + i * row + kPanel; at += kWidth)
          StoreVector(factor * LoadVector(at), at);
      }
    }
    if (!whole) StorePart(values, add, place);
  }

 private:
  static constexpr int kTile = 16;  // rows and columns
};

#else

#if defined(SG_BF16_PAIRS)
typedef Pairs Elements;
SG_VECTOR_INLINE void AddProducts(Pairs a, Pairs b, Vector* sums) {
  AddDotPairs(a, b, sums);
}
#else
typedef Vector Elements;
SG_VECTOR_INLINE void AddProducts(Vector a, Vector b, Vector* sums) {
  *sums += a * b;
}
#endif
SG_VECTOR_INLINE Elements LoadElements(const Element* data) {
  Elements elements;
  std::memcpy(&elements, data, sizeof(elements));
  return elements;
}

class Multiplier {
 public:
  Multiplier() {}

  template <int kRow, int kStep, int kJump>
  __attribute__((noinline)) static void Multiply(const Element* a,
                                                 const Element* b,
                                                 int64_t depth, bool add,
                                                 float factor,
                                                 const SumsPlace& place) {
    Vector sums[kMicroRows][2] = {};
    for (; depth > 0; depth -= kPanel, a += kJump) {
      const Element* at = a;
      for (int64_t p = 0; p < Min(kPanel, depth); ++p) {
        const Elements b0 = LoadElements(b);
        const Elements b1 = LoadElements(b + kWidth);
#pragma GCC unroll 12
        for (int i = 0; i < kMicroRows; ++i) {
          const Elements left = at[i * kRow] - Elements{};
          AddProducts(left, b0, &sums[i][0]);
          AddProducts(left, b1, &sums[i][1]);
        }
        at += kStep;
        b += kPanel;
      }
    }
    const bool whole = place.whole();
    alignas(64) float values[kMicroRows * kPanel];
    float* const c = whole ? place.c : values;
    const int64_t stride = whole ? place.stride : kPanel;
    if (add && whole) {
#pragma GCC unroll 12
      for (int i = 0; i < kMicroRows; ++i) {
        for (int h = 0; h < 2; ++h) {
          float* const to = c + i * stride + h * kWidth;
          StoreVector(LoadVector(to) + sums[i][h], to);
        }
      }
    } else {
#pragma GCC unroll 12
      for (int i = 0; i < kMicroRows; ++i) {
        for (int h = 0; h < 2; ++h)
          StoreVector(factor * sums[i][h], c + i * stride + h * kWidth);
      }
    }
    if (!whole) StorePart(values, add, place);
  }
};

#endif  // SG_AMX

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
      Multiplier::Multiply<kPanel, 1, kLeftStride>(
          left.data + r * kPanel, b, depth, /*add=*/false, factor, place);
    }
  }
}

// c[r, d] += sum over p in [from(r), to(r)) of left(r, p) right[p, d]: what
// scores are multiplied with, as SumOverRows or SumOverColumns gives them.
// Numbers that share a unit with the first or the last one are zeros in `left`.
template <typename Left, typename From, typename To>
SG_VECTOR_INLINE void AddProduct(Left left, const Panels& right, int64_t rows,
                                 int64_t width, From from, To to, float* c,
                                 int64_t stride) {
  for (int64_t d = 0; d < width; d += kPanel) {
    const Element* b = right.data + d / kPanel * kRightStride;
    for (int64_t r = 0; r < rows; r += kMicroRows) {
      const int64_t begin = from(r) / (kNumbers * kUnit) * kUnit;
      const int64_t end = ElementsOf(to(r));
      if (begin >= end) continue;
      Multiplier::Multiply<Left::kRow, Left::kStep, kPanel * Left::kStep>(
          left.data + r * Left::kRow + begin * Left::kStep, b + begin * kPanel,
          end - begin, /*add=*/true, 1,
          {c + r * stride + d, stride, rows - r, width - d});
    }
  }
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_ATTENTION_ATTENTION_PRODUCTS_H_
