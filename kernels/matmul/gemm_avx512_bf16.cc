// Products of BF16 operands by AVX-512 BF16.
//
// An element's sum runs over k in order, by pairs, as VDPBF16PS sums them; sums
// that leave the registers between blocks of k return unchanged.
#include <cstdint>
#include <cstring>

#include "kernels/cpu/avx512_bf16.h"
#include "kernels/matmul/gemm_pairs.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

class Block {
 public:
  static constexpr int kRows = 12;  // sums fill 24 of 32 registers
  static constexpr int64_t kMaxRows = 16 * kRows;
  static constexpr int64_t kBlockDepth = 1024;
  // Rows 4 KiB apart crowd each other out of the first-level cache.
  static bool InPlace(int64_t row_bytes) { return row_bytes % 4096 != 0; }
  static constexpr bool kTakesAcross = true;

  void Multiply(int64_t steps, const PairRows& a, const char* b,
                const float* sums, float* out, FetchedAhead* ahead) {
    if (a.across) {
      MultiplyPairs<true>(steps, a.data, a.stride, b, sums, out, ahead);
    } else {
      MultiplyPairs<false>(steps, a.data, a.stride, b, sums, out, ahead);
    }
  }

 private:
  // A function of its own, or GCC runs out of registers.
  template <bool kAcross>
  __attribute__((noinline)) static void MultiplyPairs(
      int64_t steps, const char* a, int64_t stride, const char* b,
      const float* sums, float* out, FetchedAhead* ahead) {
    const int64_t row_stride = kAcross ? sizeof(uint32_t) : stride;
    const int64_t pair_stride = kAcross ? stride : sizeof(uint32_t);
    PairSums sum[kRows][2];
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        if (sums == nullptr) {
          sum[i][h] = PairSums{};
        } else {
          std::memcpy(&sum[i][h], sums + i * kColumns + h * kTile,
                      sizeof(PairSums));
        }
      }
    }
    for (int64_t s = 0; s < steps; ++s) {
      ahead->Fetch();
      for (int t = 0; t < kTile; ++t) {
        Pairs b0, b1;
        std::memcpy(&b0, b, sizeof(b0));
        std::memcpy(&b1, b + kTileBytes, sizeof(b1));
#pragma GCC unroll 12
        for (int i = 0; i < kRows; ++i) {
          uint32_t pair;
          std::memcpy(&pair, a + i * row_stride, sizeof(pair));
          const Pairs left = pair - Pairs{};
          AddDotPairs(left, b0, &sum[i][0]);
          AddDotPairs(left, b1, &sum[i][1]);
        }
        a += pair_stride;
        b += sizeof(Pairs);
      }
      b += kTileBytes;
    }
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        std::memcpy(out + i * kColumns + h * kTile, &sum[i][h],
                    sizeof(PairSums));
      }
    }
  }
};

}  // namespace

extern const GemmKernels kGemmKernels;  // also where no header declares it
const GemmKernels kGemmKernels = {
    Block::kRows,    kColumns,           kDepth, sizeof(uint16_t),
    Block::kMaxRows, Block::kBlockDepth, Pack,   Run<Block>};

}  // namespace shardgraph::SG_CPU_TARGET
