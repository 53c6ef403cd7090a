// Plain code that does what the AMX instructions of kernels/cpu/amx.h do,
// bit for bit, so that their users are tested on every processor. For that
// header to include, behind its TileConfig.
//
// What the processor refuses (use without configuration, sizes that do not
// fit) ends the program.
#ifndef KERNELS_CPU_AMX_DOUBLE_H_
#define KERNELS_CPU_AMX_DOUBLE_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/bf16_double.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// The tiles of a thread.
struct Tiles {
  bool configured = false;
  TileConfig config;
  uint8_t data[8][16][64];
};
inline thread_local Tiles tiles;

inline void Require(bool condition) {
  if (!condition) std::abort();
}
inline int RowsOf(int tile) {
  Require(tiles.configured && tiles.config.rows[tile] > 0);
  return tiles.config.rows[tile];
}
inline int ColumnBytesOf(int tile) {
  Require(tiles.configured && tiles.config.column_bytes[tile] > 0);
  return tiles.config.column_bytes[tile];
}

inline void ConfigureTiles(const TileConfig& config) {
  Require(config.palette == 1 && config.start_row == 0);
  for (const uint8_t byte : config.reserved) Require(byte == 0);
  for (int t = 0; t < 16; ++t) {
    Require(config.rows[t] <= 16 && config.column_bytes[t] <= 64);
    Require((config.rows[t] == 0) == (config.column_bytes[t] == 0));
    if (t >= 8) Require(config.rows[t] == 0);
  }
  tiles.config = config;
  tiles.configured = true;
  std::memset(tiles.data, 0, sizeof(tiles.data));
}
inline void ReleaseTiles() { tiles.configured = false; }

template <int kTile>
void ZeroTile() {
  RowsOf(kTile);
  std::memset(tiles.data[kTile], 0, sizeof(tiles.data[kTile]));
}
template <int kTile>
void LoadTile(const void* data, int64_t stride) {
  const int rows = RowsOf(kTile), bytes = ColumnBytesOf(kTile);
  std::memset(tiles.data[kTile], 0, sizeof(tiles.data[kTile]));
  for (int i = 0; i < rows; ++i) {
    std::memcpy(tiles.data[kTile][i],
                static_cast<const char*>(data) + i * stride, bytes);
  }
}
template <int kTile>
void StoreTile(void* data, int64_t stride) {
  const int rows = RowsOf(kTile), bytes = ColumnBytesOf(kTile);
  for (int i = 0; i < rows; ++i) {
    std::memcpy(static_cast<char*>(data) + i * stride, tiles.data[kTile][i],
                bytes);
  }
}

// Even and odd elements are summed apart, over k in order, from zero; their sum
// is added to the tile's.
template <int kSums, int kA, int kB>
void MultiplyTiles() {
  const int columns = ColumnBytesOf(kSums) / 4;
  const int depth = ColumnBytesOf(kA) / 4;
  Require(RowsOf(kSums) == RowsOf(kA) && depth == RowsOf(kB) &&
          ColumnBytesOf(kSums) == ColumnBytesOf(kB));
  for (int m = 0; m < RowsOf(kA); ++m) {
    float even[16] = {}, odd[16] = {}, sums[16];
    uint16_t a[32], b[32];
    std::memcpy(a, tiles.data[kA][m], sizeof(a));
    for (int k = 0; k < depth; ++k) {
      std::memcpy(b, tiles.data[kB][k], sizeof(b));
      const float a_even = WidenBf16(a[2 * k]);
      const float a_odd = WidenBf16(a[2 * k + 1]);
      for (int n = 0; n < columns; ++n) {
        even[n] = MultiplyAdd(a_even, WidenBf16(b[2 * n]), even[n]);
        odd[n] = MultiplyAdd(a_odd, WidenBf16(b[2 * n + 1]), odd[n]);
      }
    }
    std::memcpy(sums, tiles.data[kSums][m], sizeof(sums));
    for (int n = 0; n < columns; ++n) {
      const float pair = FlushSubnormal(even[n] + odd[n]);
      sums[n] = FlushSubnormal(FlushSubnormal(sums[n]) + pair);
    }
    std::memcpy(tiles.data[kSums][m], sums, sizeof(sums));
  }
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_CPU_AMX_DOUBLE_H_
