// What kernels/cpu/avx512_bf16.h does, for its test: by the instruction and by
// plain code.
#ifndef KERNELS_CPU_AVX512_BF16_PROBE_H_
#define KERNELS_CPU_AVX512_BF16_PROBE_H_

#include <cstdint>

namespace shardgraph {

// sums += a b, sixteen of each.
using DotPairsFunction = void(const uint32_t* a, const uint32_t* b,
                              float* sums);
// Sixteen numbers of each, as 32 BF16 numbers.
using RoundFunction = void(const float* first, const float* second,
                           uint16_t* rounded);

namespace avx512_bf16 {  // for CpuTarget::kAvx512Bf16 alone
DotPairsFunction DotPairs;
RoundFunction Round;
}  // namespace avx512_bf16
namespace avx512_bf16_double {
DotPairsFunction DotPairs;
RoundFunction Round;
}  // namespace avx512_bf16_double

}  // namespace shardgraph

#endif  // KERNELS_CPU_AVX512_BF16_PROBE_H_
