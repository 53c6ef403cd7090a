#include "kernels/attention/attention_block.h"

#include <cstdint>
#include <cstring>

#include "kernels/attention/attention_products.h"
#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

const float kInfinity = __builtin_inff();

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

// Row t of a head = factor * values; the next rows are stored soon.
void StoreRow(const AttentionHead& head, const HeadRows& rows, int64_t t,
              const float* values, float factor) {
  PrefetchRow(head, rows, t + kAhead);
  if (head.bf16) {
    StoreRow(values, factor, head.width,
             static_cast<uint16_t*>(rows.data) + t * rows.stride);
  } else {
    StoreRow(values, factor, head.width,
             static_cast<float*>(rows.data) + t * rows.stride);
  }
}

// The same for the gradient of q or k, turned back.
void StoreTurnedBack(const AttentionHead& head, const HeadRows& rows, int64_t t,
                     const float* values, float factor) {
  if (head.rotary == nullptr) return StoreRow(head, rows, t, values, factor);
  PrefetchRow(head, rows, t + kAhead);
  const int64_t size = head.bf16 ? 2 : 4;
  alignas(64) char row[kMaxHeadWidth * sizeof(float)];
  if (head.bf16) {
    StoreRow(values, factor, head.width, reinterpret_cast<uint16_t*>(row));
  } else {
    StoreRow(values, factor, head.width, reinterpret_cast<float*>(row));
  }
  TurnRow(head, row, t, /*inverse=*/true,
          static_cast<char*>(rows.data) + t * rows.stride * size);
}

// Asks for rows [t, t + kBlock) of a head, which the next tile will pack.
void PrefetchBlock(const AttentionHead& head, const HeadRows& rows, int64_t t,
                   int64_t end) {
  for (int64_t n = t; n < Min(t + kBlock, end); ++n)
    PrefetchRow<2>(head, rows, n);
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
        const Vector e = ExpBelow88(LoadVector(at) - base);
        StoreVector(e, at);
        total[k] += e;
      }
    }
    if (c < end) {
      float* const at = s + c * kBlock + r;
      const Vector e = ExpBelow88(LoadVector(at) - base);
      StoreVector(e, at);
      total[0] += e;
    }
    // Rows of one micro-tile see different numbers of keys.
    for (c = end; c < columns; ++c) StoreVector(Vector{}, s + c * kBlock + r);
    const Vector factor = ExpBelow88(old_max - base);
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
    if (visible == kBlock) continue;
    std::memset(p + visible, 0, (kBlock - visible) * sizeof(float));
    std::memset(ds + visible, 0, (kBlock - visible) * sizeof(float));
  }
}

// Keys [j, j + columns) and the sums of their gradients.
struct KeyBlock {
  int64_t j, columns;
  Panels k;  // right operand
  TransposedPanels k_transposed, v_transposed;
  alignas(64) float dk[kBlock * kMaxHeadWidth];
  alignas(64) float dv[kBlock * kMaxHeadWidth];
};

// Adds the contributions of the block and queries [i, i + rows) to all three
// gradients.
void TileGradient(const AttentionHead& head, int64_t i, int64_t rows,
                  const BothPanels& q, const BothPanels& dout,
                  KeyBlock* block) {
  Square scores, dp, kept;
  HalfSquare half;
  const Tile tile{head, i, block->j, rows, block->columns};
  const int64_t width = head.width;
  const auto row_begin = [&](int64_t c) { return tile.QueriesBegin(c); };
  const auto rows_end = [&](int64_t) { return rows; };
  const auto key_begin = [](int64_t) { return 0; };
  const auto keys_end = [&](int64_t r) {
    return tile.KeysEnd(Min(r + kMicroRows, rows) - 1);
  };
  Scores(q.left, block->k_transposed, rows, tile.columns, width, row_begin,
         rows_end, &scores);
  Scores(dout.left, block->v_transposed, rows, tile.columns, width, row_begin,
         rows_end, &dp);
  if (head.kept != nullptr)
    head.kept(head, i, tile.j, rows, tile.columns, kBlock, 1, kept.data);
  ScoreGradient(tile, head.lse + i, head.deltas + i,
                head.kept == nullptr ? nullptr : &kept, &scores, &dp);
  AddProduct(SumOverRows(scores, rows, tile.columns, &half), dout.right,
             tile.columns, width, row_begin, rows_end, block->dv, width);
  AddProduct(SumOverRows(dp, rows, tile.columns, &half), q.right, tile.columns,
             width, row_begin, rows_end, block->dk, width);
  AddProduct(SumOverColumns(dp, rows, tile.columns, &half), block->k, rows,
             width, key_begin, keys_end, head.dq_sums + i * width, width);
}

// What KeysGradient and TileGradient hold on the stack.
static_assert(kKeyBlocks * sizeof(KeyBlock) + 2 * sizeof(BothPanels) +
                  sizeof(Panels) + sizeof(TurnedRows) + 3 * sizeof(Square) +
                  sizeof(HalfSquare) <
              (2 << 20) - (64 << 10));

// dk and dv of keys [j, j + kKeyBlocks * kBlock); adds to the sums of dq.
void KeysGradient(const AttentionHead* heads, int64_t count, int64_t j) {
  KeyBlock blocks[kKeyBlocks];
  BothPanels q, dout;
  Panels left;
  TurnedRows turned;
  const AttentionHead& first = heads[0];
  const int64_t width = first.width;
  for (KeyBlock& block : blocks) {
    block.j = j + (&block - blocks) * kBlock;
    block.columns = Max(0, Min(kBlock, first.keys - block.j));
    std::memset(block.dk, 0, block.columns * width * sizeof(float));
    std::memset(block.dv, 0, block.columns * width * sizeof(float));
    PackLeft(first, first.v, block.j, block.columns, &left);
    Transpose(left, block.columns, width, 1, &block.v_transposed);
    const HeadRows k = Turned(first, first.k, block.j, block.columns, &turned);
    PackLeft(first, k, 0, block.columns, &left);
    Transpose(left, block.columns, width, first.scale, &block.k_transposed);
    PackRight(first, k, 0, block.columns, &block.k);
  }
  for (int64_t h = 0; h < count; ++h) {
    const AttentionHead& head = heads[h];
    // Causal: earlier queries see none of these keys.
    for (int64_t i = head.causal ? j : 0; i < head.queries; i += kBlock) {
      const int64_t rows = Min(kBlock, head.queries - i);
      Pack(head, Turned(head, head.q, i, rows, &turned), 0, rows, &q);
      Pack(head, head.dout, i, rows, &dout);
      PrefetchBlock(head, head.q, i + kBlock, head.queries);
      PrefetchBlock(head, head.dout, i + kBlock, head.queries);
      for (KeyBlock& block : blocks) {
        if (block.columns == 0 || (head.causal && block.j > i)) continue;
        TileGradient(head, i, rows, q, dout, &block);
      }
    }
  }
  for (const KeyBlock& block : blocks) {
    for (int64_t c = 0; c < block.columns; ++c) {
      StoreTurnedBack(first, first.dk, block.j + c, block.dk + c * width,
                      first.scale);
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
  PrefetchRow(head, head.dout, t + kAhead);
  PrefetchRow(head, head.out, t + kAhead);
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
  HalfSquare half;
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
  AddProduct(
      SumOverRows(scores, tile.columns, rows, &half), v, rows, width, begin,
      [&](int64_t r) { return tile.KeysEnd(Min(r + kMicroRows, rows) - 1); },
      block->out, width);
}

}  // namespace

void AttentionForward(const AttentionHead& head, int64_t i) {
  const Multiplier multiplier;
  QueryBlock blocks[kQueryBlocks];
  Panels k, v;
  TurnedRows turned;
  for (QueryBlock& block : blocks) {
    block.i = i + (&block - blocks) * kBlock;
    block.rows = Max(0, Min(kBlock, head.queries - block.i));
    for (float& max : block.max) max = -kInfinity;
    std::memset(block.sum, 0, sizeof(block.sum));
    std::memset(block.out, 0, block.rows * head.width * sizeof(float));
    PackLeft(head, Turned(head, head.q, block.i, block.rows, &turned), 0,
             block.rows, &k);
    Transpose(k, block.rows, head.width, head.scale, &block.q);
  }
  const int64_t last = Min(head.queries, i + kQueryBlocks * kBlock);
  const int64_t keys =
      head.causal ? Max(0, Min(head.keys, last + head.offset)) : head.keys;
  for (int64_t j = 0; j < keys; j += kBlock) {
    const int64_t columns = Min(kBlock, keys - j);
    PackLeft(head, Turned(head, head.k, j, columns, &turned), 0, columns, &k);
    PackRight(head, head.v, j, columns, &v);
    PrefetchBlock(head, head.k, j + kBlock, keys);
    PrefetchBlock(head, head.v, j + kBlock, keys);
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
  const Multiplier multiplier;
  for (int64_t h = 0; h < count; ++h) {
    const AttentionHead& head = heads[h];
    std::memset(head.dq_sums, 0, head.queries * head.width * sizeof(float));
    for (int64_t t = 0; t < head.queries; ++t) head.deltas[t] = Delta(head, t);
  }
  for (int64_t j = 0; j < heads[0].keys; j += kKeyBlocks * kBlock)
    KeysGradient(heads, count, j);
  for (int64_t h = 0; h < count; ++h) {
    const AttentionHead& head = heads[h];
    for (int64_t t = 0; t < head.queries; ++t) {
      StoreTurnedBack(head, head.dq, t, head.dq_sums + t * head.width,
                      head.scale);
    }
  }
}

}  // namespace shardgraph::SG_CPU_TARGET
