#include "kernels/attention/attention_block.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"

// Note: layouts. Operands of products are FP32. "Panels" are columns of a
// matrix, kPanel at a time: element (p, c) of a matrix of at most kBlock rows
// is at (c / kPanel) * kPanelStride + p * kPanel + c % kPanel. A micro-kernel
// keeps kMicroRows x kPanel sums in registers; the right operand is one panel,
// elements of the left one are broadcast, so panels serve as left operands
// too. Rows and columns behind the end of a tile hold anything: what is
// computed from them is not stored.
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

const float kInfinity = __builtin_inff();

int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }

// A matrix of a block's width at most, in panels.
struct Panels {
  alignas(64) float data[kMaxPanels * kPanelStride];
};
// Scores and the like: element (r, c) at r * kBlock + c.
struct Square {
  alignas(64) float data[kBlock * kBlock];
};

template <typename T>
SG_VECTOR_INLINE void PackRows(const T* row, int64_t stride, int64_t n,
                               int64_t width, Panels* panels) {
  constexpr int64_t kAhead = 8;  // rows are far apart: ask for them early
  for (int64_t p = 0; p < n; ++p, row += stride) {
    const char* ahead = reinterpret_cast<const char*>(
        p + kAhead < n ? row + kAhead * stride : row);
    for (int64_t byte = 0; byte < width * int64_t{sizeof(T)}; byte += 64)
      __builtin_prefetch(ahead + byte);
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

// Asks for rows [t, t + kBlock) of a head, which the next tile will pack.
void Prefetch(const AttentionHead& head, const HeadRows& rows, int64_t t,
              int64_t end) {
  const int64_t size = head.bf16 ? 2 : 4;
  for (int64_t n = t; n < Min(t + kBlock, end); ++n) {
    const char* row =
        static_cast<const char*>(rows.data) + n * rows.stride * size;
    for (int64_t byte = 0; byte < head.width * size; byte += 64)
      __builtin_prefetch(row + byte, 0, 2);
  }
}

// Rows [t, t + n) of a head.
void Pack(const AttentionHead& head, const HeadRows& rows, int64_t t, int64_t n,
          Panels* panels) {
  if (head.bf16) {
    PackRows(static_cast<const uint16_t*>(rows.data) + t * rows.stride,
             rows.stride, n, head.width, panels);
  } else {
    PackRows(static_cast<const float*>(rows.data) + t * rows.stride,
             rows.stride, n, head.width, panels);
  }
}

// The panels of factor * the transposed matrix: `width` rows, n columns. A
// panel of it has room for kMaxHeadWidth rows.
struct TransposedPanels {
  static constexpr int64_t kStride = kMaxHeadWidth * kPanel;
  alignas(64) float data[kBlock / kPanel * kStride];
};

void Transpose(const Panels& panels, int64_t n, int64_t width, float factor,
               TransposedPanels* transposed) {
  typedef float Float4 __attribute__((vector_size(16), aligned(4), may_alias));
  const auto low = [](Float4 a, Float4 b) {
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
  };
  const auto high = [](Float4 a, Float4 b) {
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
  };
  // Four by four; rows and columns behind the end are there.
  for (int64_t d = 0; d < width; d += 4) {
    const float* from = panels.data + d / kPanel * kPanelStride + d % kPanel;
    for (int64_t i = 0; i < n; i += 4) {
      Float4 row[4];
      for (int k = 0; k < 4; ++k)
        row[k] =
            *reinterpret_cast<const Float4*>(from + (i + k) * kPanel) * factor;
      const Float4 w = low(row[0], row[2]);
      const Float4 x = high(row[0], row[2]);
      const Float4 y = low(row[1], row[3]);
      const Float4 z = high(row[1], row[3]);
      Float4* const to = reinterpret_cast<Float4*>(
          transposed->data + i / kPanel * TransposedPanels::kStride +
          d * kPanel + i % kPanel);
      to[0] = low(w, y);
      to[kPanel / 4] = high(w, y);
      to[2 * kPanel / 4] = low(x, z);
      to[3 * kPanel / 4] = high(x, z);
    }
  }
}

struct Sums {
  Vector part[kMicroRows][2];
};

// sums += a b: element (i, p) of the left operand is at a[i * kRow + p *
// kStep].
template <int kRow, int kStep>
SG_VECTOR_INLINE void Multiply(const float* a, const float* b, int64_t depth,
                               Sums* sums) {
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b0 = LoadVector(b);
    const Vector b1 = LoadVector(b + kWidth);
#pragma GCC unroll 12
    for (int i = 0; i < kMicroRows; ++i) {
      const Vector left = Broadcast(a[i * kRow]);
      sums->part[i][0] += left * b0;
      sums->part[i][1] += left * b1;
    }
    a += kStep;
    b += kPanel;
  }
}

// c = sums or c += sums, `rows` x `columns` of it.
template <bool kAdd>
SG_VECTOR_INLINE void StoreSums(const Sums& sums, int64_t rows, int64_t columns,
                                float* c, int64_t stride) {
  if (rows >= kMicroRows && columns >= kPanel) {
#pragma GCC unroll 12
    for (int i = 0; i < kMicroRows; ++i) {
      for (int k = 0; k < 2; ++k) {
        float* to = c + i * stride + k * kWidth;
        const Vector sum = sums.part[i][k];
        StoreVector(kAdd ? LoadVector(to) + sum : sum, to);
      }
    }
    return;
  }
  float values[kMicroRows][kPanel];
#pragma GCC unroll 12
  for (int i = 0; i < kMicroRows; ++i) {
    StoreVector(sums.part[i][0], values[i]);
    StoreVector(sums.part[i][1], values[i] + kWidth);
  }
  for (int64_t i = 0; i < Min(kMicroRows, rows); ++i) {
    for (int64_t k = 0; k < Min(kPanel, columns); ++k) {
      float* to = c + i * stride + k;
      *to = kAdd ? *to + values[i][k] : values[i][k];
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
  for (int64_t n = 0; n < columns; n += kPanel) {
    const float* b = right.data + n / kPanel * TransposedPanels::kStride;
    const int64_t end = Min(rows, to(n));
    for (int64_t r = from(n) / kMicroRows * kMicroRows; r < end;
         r += kMicroRows) {
      Sums sums = {};
      for (int64_t d = 0; d < width; d += kPanel) {
        Multiply<kPanel, 1>(left.data + d / kPanel * kPanelStride + r * kPanel,
                            b + d * kPanel, Min(kPanel, width - d), &sums);
      }
      // Squares have room for whole micro-tiles.
      StoreSums<false>(sums, kMicroRows, kPanel, c->data + r * kBlock + n,
                       kBlock);
    }
  }
}

// c[r, d] += sum over p in [from(r), to(r)) of left(r, p) right[p, d]: what
// scores are multiplied with. kTransposed: left(r, p) is element (p, r).
template <bool kTransposed, typename From, typename To>
SG_VECTOR_INLINE void AddProduct(const Square& left, const Panels& right,
                                 int64_t rows, int64_t width, From from, To to,
                                 float* c, int64_t stride) {
  constexpr int kRow = kTransposed ? 1 : kBlock;
  constexpr int kStep = kTransposed ? kBlock : 1;
  for (int64_t d = 0; d < width; d += kPanel) {
    const float* b = right.data + d / kPanel * kPanelStride;
    for (int64_t r = 0; r < rows; r += kMicroRows) {
      const int64_t begin = from(r), end = to(r);
      if (begin >= end) continue;
      Sums sums = {};
      Multiply<kRow, kStep>(left.data + r * kRow + begin * kStep,
                            b + begin * kPanel, end - begin, &sums);
      StoreSums<true>(sums, rows - r, width - d, c + r * stride + d, stride);
    }
  }
}

template <typename T>
SG_VECTOR_INLINE void StoreRow(const float* values, float factor, int64_t n,
                               T* out) {
  ForVectors(
      n,
      [=](int64_t i) { StoreVector(LoadVector(values + i) * factor, out + i); },
      [=](int64_t i, int64_t count) {
        StorePart(LoadPart(values + i, count) * factor, count, out + i);
      });
}

// Row t of a head = factor * values.
void StoreRow(const AttentionHead& head, const HeadRows& rows, int64_t t,
              const float* values, float factor) {
  if (head.bf16) {
    StoreRow(values, factor, head.width,
             static_cast<uint16_t*>(rows.data) + t * rows.stride);
  } else {
    StoreRow(values, factor, head.width,
             static_cast<float*>(rows.data) + t * rows.stride);
  }
}

// A tile: queries [i, i + rows), keys [j, j + columns).
struct Tile {
  const AttentionHead& head;
  int64_t i, j, rows, columns;

  // Keys in [0, this) may be visible to query i + r.
  int64_t KeysEnd(int64_t r) const {
    if (!head.causal) return columns;
    return Max(0, Min(columns, i + r + head.offset + 1 - j));
  }
  // Queries in [this, rows) may see key j + c.
  int64_t QueriesBegin(int64_t c) const {
    if (!head.causal) return 0;
    return Max(0, Min(rows, j + c - head.offset - i));
  }
  bool SameDocument(int64_t r, int64_t c) const {
    return head.documents == nullptr ||
           head.documents[i + r + head.offset] == head.documents[j + c];
  }
};

// One step of the online softmax on transposed scores, already scaled: element
// (c, r) becomes the exponential for key j + c and query i + r relative to the
// largest score so far, times what dropout keeps; 0 where not visible.
//
// NaN among the scores makes the sum NaN. Where no score is more than -infinity
// exponentials are relative to 0.
void OnlineSoftmax(const Tile& tile, Square* scores, float* max, float* sum,
                   float* rescale) {
  float* const s = scores->data;
  const int64_t columns = tile.columns;
  for (int64_t r = 0; r < tile.rows; r += kWidth) {
    const int64_t last = Min(r + kWidth, tile.rows) - 1;
    const int64_t end = tile.KeysEnd(last);
    if (tile.KeysEnd(r) < end || tile.head.documents != nullptr) {
      for (int64_t lane = r; lane <= last; ++lane) {
        const int64_t visible = tile.KeysEnd(lane);
        for (int64_t c = 0; c < end; ++c) {
          if (c >= visible || !tile.SameDocument(lane, c))
            s[c * kBlock + lane] = -kInfinity;
        }
      }
    }
    const Vector old_max = LoadVector(max + r);
    Vector new_max = old_max, other_max = old_max;
    int64_t c = 0;
    for (; c + 2 <= end; c += 2) {
      new_max = SG_CPU_TARGET::Max(LoadVector(s + c * kBlock + r), new_max);
      other_max =
          SG_CPU_TARGET::Max(LoadVector(s + (c + 1) * kBlock + r), other_max);
    }
    if (c < end)
      new_max = SG_CPU_TARGET::Max(LoadVector(s + c * kBlock + r), new_max);
    new_max = SG_CPU_TARGET::Max(new_max, other_max);
    const Vector base = new_max == -kInfinity ? Vector{} : new_max;
    Vector total[2] = {};
    for (c = 0; c + 2 <= end; c += 2) {
#pragma GCC unroll 2
      for (int k = 0; k < 2; ++k) {
        float* const at = s + (c + k) * kBlock + r;
        const Vector e = Exp(LoadVector(at) - base);
        StoreVector(e, at);
        total[k] += e;
      }
    }
    if (c < end) {
      float* const at = s + c * kBlock + r;
      const Vector e = Exp(LoadVector(at) - base);
      StoreVector(e, at);
      total[0] += e;
    }
    // Rows of one micro-tile see different numbers of keys.
    for (c = end; c < columns; ++c) StoreVector(Vector{}, s + c * kBlock + r);
    const Vector factor = Exp(old_max - base);
    StoreVector(factor, rescale + r);
    StoreVector(LoadVector(sum + r) * factor + (total[0] + total[1]), sum + r);
    StoreVector(new_max, max + r);
  }
}

// In: scores s[r, c], already scaled, and products of dout and v in dp. Out:
// probabilities after dropout in s, gradients of the scores in dp; 0 where not
// visible.
void ScoreGradient(const Tile& tile, const float* lse, const float* deltas,
                   const Square* kept, Square* s, Square* dp) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* const p = s->data + r * kBlock;
    float* const ds = dp->data + r * kBlock;
    const float* const keep =
        kept == nullptr ? nullptr : kept->data + r * kBlock;
    const int64_t visible = tile.KeysEnd(r);
    if (tile.head.documents != nullptr) {
      for (int64_t c = 0; c < visible; ++c) {
        if (!tile.SameDocument(r, c)) p[c] = -kInfinity;
      }
    }
    // A query that sees no key has an lse of -infinity.
    const float row_lse = lse[r] == -kInfinity ? kInfinity : lse[r];
    const float delta = deltas[r];
    int64_t c = 0;
    for (; c < visible; c += kWidth) {
      const Vector e = Exp(LoadVector(p + c) - row_lse);
      if (keep == nullptr) {
        StoreVector(e * (LoadVector(ds + c) - delta), ds + c);
        StoreVector(e, p + c);
      } else {
        const Vector k = LoadVector(keep + c);
        StoreVector(e * (k * LoadVector(ds + c) - delta), ds + c);
        StoreVector(e * k, p + c);
      }
    }
    // Rows end with whole vectors; what is behind the visible keys is zero.
    std::memset(p + visible, 0, (kBlock - visible) * sizeof(float));
    std::memset(ds + visible, 0, (kBlock - visible) * sizeof(float));
  }
}

// Keys [j, j + columns) and the sums of their gradients.
struct KeyBlock {
  int64_t j, columns;
  Panels k;
  TransposedPanels k_transposed, v_transposed;
  alignas(64) float dk[kBlock * kMaxHeadWidth];
  alignas(64) float dv[kBlock * kMaxHeadWidth];
};

// Adds the contributions of the block and queries [i, i + rows) to all three
// gradients.
void TileGradient(const AttentionHead& head, int64_t i, int64_t rows,
                  const Panels& q, const Panels& dout, KeyBlock* block) {
  Square scores, dp, kept;
  const Tile tile{head, i, block->j, rows, block->columns};
  const int64_t width = head.width;
  const auto row_begin = [&](int64_t c) { return tile.QueriesBegin(c); };
  const auto rows_end = [&](int64_t) { return rows; };
  const auto key_begin = [](int64_t) { return 0; };
  const auto keys_end = [&](int64_t r) {
    return tile.KeysEnd(Min(r + kMicroRows, rows) - 1);
  };
  Scores(q, block->k_transposed, rows, tile.columns, width, row_begin, rows_end,
         &scores);
  Scores(dout, block->v_transposed, rows, tile.columns, width, row_begin,
         rows_end, &dp);
  if (head.kept != nullptr)
    head.kept(head, i, tile.j, rows, tile.columns, kBlock, 1, kept.data);
  ScoreGradient(tile, head.lse + i, head.deltas + i,
                head.kept == nullptr ? nullptr : &kept, &scores, &dp);
  AddProduct<true>(scores, dout, tile.columns, width, row_begin, rows_end,
                   block->dv, width);
  AddProduct<true>(dp, q, tile.columns, width, row_begin, rows_end, block->dk,
                   width);
  AddProduct<false>(dp, block->k, rows, width, key_begin, keys_end,
                    head.dq_sums + i * width, width);
}

// dk and dv of keys [j, j + kPair * kBlock); adds to the sums of dq.
void KeysGradient(const AttentionHead* heads, int64_t count, int64_t j) {
  KeyBlock blocks[kPair];
  Panels q, dout;
  const AttentionHead& first = heads[0];
  const int64_t width = first.width;
  for (KeyBlock& block : blocks) {
    block.j = j + (&block - blocks) * kBlock;
    block.columns = Max(0, Min(kBlock, first.keys - block.j));
    std::memset(block.dk, 0, block.columns * width * sizeof(float));
    std::memset(block.dv, 0, block.columns * width * sizeof(float));
    Pack(first, first.v, block.j, block.columns, &block.k);
    Transpose(block.k, block.columns, width, 1, &block.v_transposed);
    Pack(first, first.k, block.j, block.columns, &block.k);
    Transpose(block.k, block.columns, width, first.scale, &block.k_transposed);
  }
  for (int64_t h = 0; h < count; ++h) {
    const AttentionHead& head = heads[h];
    // Causal: earlier queries see none of these keys.
    for (int64_t i = head.causal ? j : 0; i < head.queries; i += kBlock) {
      const int64_t rows = Min(kBlock, head.queries - i);
      Pack(head, head.q, i, rows, &q);
      Pack(head, head.dout, i, rows, &dout);
      Prefetch(head, head.q, i + kBlock, head.queries);
      Prefetch(head, head.dout, i + kBlock, head.queries);
      for (KeyBlock& block : blocks) {
        if (block.columns == 0 || (head.causal && block.j > i)) continue;
        TileGradient(head, i, rows, q, dout, &block);
      }
    }
  }
  for (const KeyBlock& block : blocks) {
    for (int64_t c = 0; c < block.columns; ++c) {
      StoreRow(first, first.dk, block.j + c, block.dk + c * width, first.scale);
      StoreRow(first, first.dv, block.j + c, block.dv + c * width, 1);
    }
  }
}

template <typename T>
SG_VECTOR_INLINE float Dot(const T* x, const T* y, int64_t n) {
  LaneSum sum;
  ForLanes(n, [&](int64_t, int part, auto load) {
    sum.part[part] += load(x) * load(y);
  });
  return Total(sum);
}

// Sum over d of dout[t, d] out[t, d].
float Delta(const AttentionHead& head, int64_t t) {
  const int64_t x = t * head.dout.stride, y = t * head.out.stride;
  return head.bf16
             ? Dot(static_cast<const uint16_t*>(head.dout.data) + x,
                   static_cast<const uint16_t*>(head.out.data) + y, head.width)
             : Dot(static_cast<const float*>(head.dout.data) + x,
                   static_cast<const float*>(head.out.data) + y, head.width);
}

// Queries [i, i + rows) and what is known of them so far.
struct QueryBlock {
  int64_t i, rows;
  TransposedPanels q;  // times scale
  alignas(64) float out[kBlock * kMaxHeadWidth];
  alignas(64) float max[kBlock];
  alignas(64) float sum[kBlock];
};

// Adds the keys and values of a tile to a block of queries.
//
// The scores are transposed, keys by queries. So only the queries are
// transposed, once, and the softmax runs over vectors of queries.
void AddTile(const Tile& tile, const Panels& k, const Panels& v,
             QueryBlock* block) {
  Square scores, kept;
  alignas(64) float rescale[kBlock];
  const int64_t width = tile.head.width;
  const int64_t rows = tile.rows;
  const auto begin = [](int64_t) { return 0; };
  Scores(
      k, block->q, tile.columns, rows, width, begin,
      [&](int64_t r) { return tile.KeysEnd(Min(r + kPanel, rows) - 1); },
      &scores);
  OnlineSoftmax(tile, &scores, block->max, block->sum, rescale);
  if (tile.head.kept != nullptr) {
    tile.head.kept(tile.head, tile.i, tile.j, rows, tile.columns, 1, kBlock,
                   kept.data);
    for (int64_t c = 0; c < tile.columns; ++c) {
      for (int64_t r = 0; r < rows; ++r)
        scores.data[c * kBlock + r] *= kept.data[c * kBlock + r];
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (tile.j == 0 || rescale[r] == 1.0f) continue;
    float* const out = block->out + r * width;
    for (int64_t d = 0; d < width; ++d) out[d] *= rescale[r];
  }
  AddProduct<true>(
      scores, v, rows, width, begin,
      [&](int64_t r) { return tile.KeysEnd(Min(r + kMicroRows, rows) - 1); },
      block->out, width);
}

}  // namespace

void AttentionForward(const AttentionHead& head, int64_t i) {
  QueryBlock blocks[kPair];
  Panels k, v;
  for (QueryBlock& block : blocks) {
    block.i = i + (&block - blocks) * kBlock;
    block.rows = Max(0, Min(kBlock, head.queries - block.i));
    for (float& max : block.max) max = -kInfinity;
    std::memset(block.sum, 0, sizeof(block.sum));
    std::memset(block.out, 0, block.rows * head.width * sizeof(float));
    Pack(head, head.q, block.i, block.rows, &k);
    Transpose(k, block.rows, head.width, head.scale, &block.q);
  }
  const int64_t last = Min(head.queries, i + kPair * kBlock);
  const int64_t keys =
      head.causal ? Max(0, Min(head.keys, last + head.offset)) : head.keys;
  for (int64_t j = 0; j < keys; j += kBlock) {
    const int64_t columns = Min(kBlock, keys - j);
    Pack(head, head.k, j, columns, &k);
    Pack(head, head.v, j, columns, &v);
    Prefetch(head, head.k, j + kBlock, keys);
    Prefetch(head, head.v, j + kBlock, keys);
    for (QueryBlock& block : blocks) {
      const Tile tile{head, block.i, j, block.rows, columns};
      if (block.rows > 0 && tile.KeysEnd(block.rows - 1) > 0)
        AddTile(tile, k, v, &block);
    }
  }
  for (const QueryBlock& block : blocks) {
    for (int64_t r = 0; r < block.rows; ++r) {
      const float sum = block.sum[r];
      StoreRow(head, head.out, block.i + r, block.out + r * head.width,
               sum == 0.0f ? 0.0f : 1.0f / sum);
      head.lse[block.i + r] = block.max[r] + __builtin_logf(sum);
    }
  }
}

void AttentionGradient(const AttentionHead* heads, int64_t count) {
  for (int64_t h = 0; h < count; ++h) {
    const AttentionHead& head = heads[h];
    std::memset(head.dq_sums, 0, head.queries * head.width * sizeof(float));
    for (int64_t t = 0; t < head.queries; ++t) head.deltas[t] = Delta(head, t);
  }
  for (int64_t j = 0; j < heads[0].keys; j += kPair * kBlock)
    KeysGradient(heads, count, j);
  for (int64_t h = 0; h < count; ++h) {
    const AttentionHead& head = heads[h];
    for (int64_t t = 0; t < head.queries; ++t) {
      StoreRow(head, head.dq, t, head.dq_sums + t * head.width, head.scale);
    }
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
