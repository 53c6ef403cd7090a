// The tile registers of AMX, by instructions or, with SG_AMX_DOUBLE, by plain
// code that does the same: for sources compiled with SG_CPU_TARGET defined
// (kernels/cpu/target.h).
//
// A thread configures its eight tiles, uses them and releases them. A tile
// holds `rows` rows of `column_bytes` bytes. Source: Intel 64 and IA-32
// Architectures Software Developer's Manual, volume 2.
#ifndef KERNELS_CPU_AMX_H_
#define KERNELS_CPU_AMX_H_

#include <cstdint>

namespace shardgraph::SG_CPU_TARGET {
namespace {

// Operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};  // at most 64; of tiles 0 to 7
  uint8_t rows[16] = {};           // at most 16
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#if defined(SG_AMX_DOUBLE)
#include "kernels/cpu/amx_double.h"
#else
#include "kernels/cpu/vector_math.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

SG_VECTOR_INLINE void ConfigureTiles(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
}
SG_VECTOR_INLINE void ReleaseTiles() { asm volatile("tilerelease"); }

template <int kTile>
SG_VECTOR_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// Rows lie `stride` bytes apart.
template <int kTile>
SG_VECTOR_INLINE void LoadTile(const void* data, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(data), "r"(stride), "i"(kTile)
               : "memory");
}
template <int kTile>
SG_VECTOR_INLINE void StoreTile(void* data, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(data), "r"(stride), "i"(kTile)
               : "memory");
}
// sums[m, n] += a[m, 2 k] b[k, 2 n] + a[m, 2 k + 1] b[k, 2 n + 1], summed over
// k: FP32 sums of BF16 products.
template <int kSums, int kA, int kB>
SG_VECTOR_INLINE void MultiplyTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
               :
               : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // SG_AMX_DOUBLE
#endif  // KERNELS_CPU_AMX_H_
