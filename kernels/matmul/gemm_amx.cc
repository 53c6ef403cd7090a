// Products of BF16 operands by AMX: blocks of 2 x 2 tiles.
//
// An element's sum runs over k in order, 32 at a time, as TDPBF16PS sums them;
// sums that leave the tiles between blocks of k return unchanged.
#include <cstdint>

#include "kernels/cpu/amx.h"
#include "kernels/matmul/gemm_pairs.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

class Block {
 public:
  static constexpr int kRows = 2 * kTile;
  static constexpr int64_t kMaxRows = kGemmMaxRows;
  static constexpr int64_t kBlockDepth = 1024;
  static bool InPlace(int64_t) { return true; }
  static constexpr bool kTakesAcross = false;

  Block() {
    TileConfig config;
    for (int t = 0; t < 8; ++t) {
      config.rows[t] = kTile;
      config.column_bytes[t] = 64;
    }
    ConfigureTiles(config);
  }
  ~Block() { ReleaseTiles(); }

  void Multiply(int64_t steps, const PairRows& rows, const char* b,
                const float* sums, float* out, FetchedAhead* ahead) {
    const char* const a = rows.data;
    const int64_t a_stride = rows.stride;
    constexpr int64_t kRowBytes = kColumns * sizeof(float);
    if (sums == nullptr) {
      ZeroTile<0>();
      ZeroTile<1>();
      ZeroTile<2>();
      ZeroTile<3>();
    } else {
      LoadTile<0>(sums, kRowBytes);
      LoadTile<1>(sums + kTile, kRowBytes);
      LoadTile<2>(sums + kTile * kColumns, kRowBytes);
      LoadTile<3>(sums + kTile * kColumns + kTile, kRowBytes);
    }
    const char* const lower_a = a + kTile * a_stride;
    for (int64_t s = 0; s < steps; ++s) {
      ahead->Fetch();
      LoadTile<4>(a + s * 64, a_stride);
      LoadTile<6>(b, 64);
      MultiplyTiles<0, 4, 6>();
      LoadTile<7>(b + kTileBytes, 64);
      MultiplyTiles<1, 4, 7>();
      LoadTile<5>(lower_a + s * 64, a_stride);
      MultiplyTiles<2, 5, 6>();
      MultiplyTiles<3, 5, 7>();
      b += 2 * kTileBytes;
    }
    StoreTile<0>(out, kRowBytes);
    StoreTile<1>(out + kTile, kRowBytes);
    StoreTile<2>(out + kTile * kColumns, kRowBytes);
    StoreTile<3>(out + kTile * kColumns + kTile, kRowBytes);
  }
};

}  // namespace

extern const GemmKernels kGemmKernels;  // also where no header declares it
const GemmKernels kGemmKernels = {
    Block::kRows,    kColumns,           kDepth, sizeof(uint16_t),
    Block::kMaxRows, Block::kBlockDepth, Pack,   Run<Block>};

}  // namespace shardgraph::SG_CPU_TARGET
