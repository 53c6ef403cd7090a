// What kernels/cpu/dot_pairs.h does, for its test: by the instruction and by
// plain code.
#ifndef KERNELS_CPU_DOT_PAIRS_PROBE_H_
#define KERNELS_CPU_DOT_PAIRS_PROBE_H_

#include <cstdint>

namespace shardgraph {

// sums += a b, sixteen of each.
using DotPairsFunction = void(const uint32_t* a, const uint32_t* b,
                              float* sums);

namespace avx512_bf16 {  // for CpuTarget::kAvx512Bf16 alone
DotPairsFunction DotPairs;
}
namespace avx512_bf16_double {
DotPairsFunction DotPairs;
}

}  // namespace shardgraph

#endif  // KERNELS_CPU_DOT_PAIRS_PROBE_H_
