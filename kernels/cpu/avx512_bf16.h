// Products of pairs of BF16 numbers and rounding to BF16 by AVX-512 BF16, by
// instruction or, with SG_AVX512_BF16_DOUBLE, by plain code that does the same:
// for sources compiled with SG_CPU_TARGET defined (kernels/cpu/target.h) for
// vectors of 64 bytes.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume
// 2, VDPBF16PS and VCVTNE2PS2BF16.
#ifndef KERNELS_CPU_AVX512_BF16_H_
#define KERNELS_CPU_AVX512_BF16_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/pairs.h"
#include "kernels/cpu/vector_math.h"
#if defined(SG_AVX512_BF16_DOUBLE)
#include "kernels/cpu/bf16_double.h"
#endif

namespace shardgraph::SG_CPU_TARGET {
namespace {

typedef float PairSums __attribute__((vector_size(64)));

// sums[i] += a[i].odd b[i].odd, then sums[i] += a[i].even b[i].even, each
// rounded once; subnormal numbers count as zeros.
#if defined(SG_AVX512_BF16_DOUBLE)
SG_VECTOR_INLINE void AddDotPairs(Pairs a, Pairs b, PairSums* sums) {
  for (int i = 0; i < 16; ++i) {
    float sum = FlushSubnormal((*sums)[i]);
    sum = MultiplyAdd(WidenBf16(a[i] >> 16), WidenBf16(b[i] >> 16), sum);
    sum =
        MultiplyAdd(WidenBf16(a[i] & 0xffffu), WidenBf16(b[i] & 0xffffu), sum);
    (*sums)[i] = sum;
  }
}
#else
SG_VECTOR_INLINE void AddDotPairs(Pairs a, Pairs b, PairSums* sums) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(*sums) : "v"(b), "v"(a));
}
#endif

// The numbers of `first`, then those of `second`, as 32 BF16 numbers: rounded
// to nearest even; subnormal numbers become zeros, NaN stays NaN.
#if defined(SG_AVX512_BF16_DOUBLE)
SG_VECTOR_INLINE Pairs RoundToBf16(PairSums first, PairSums second) {
  uint16_t numbers[2 * kPairs];
  for (int i = 0; i < kPairs; ++i) {
    StoreFloat(FlushSubnormal(first[i]), numbers + i);
    StoreFloat(FlushSubnormal(second[i]), numbers + kPairs + i);
  }
  Pairs pairs;
  std::memcpy(&pairs, numbers, sizeof(pairs));
  return pairs;
}
#else
SG_VECTOR_INLINE Pairs RoundToBf16(PairSums first, PairSums second) {
  Pairs pairs;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(second), "v"(first));
  return pairs;
}
#endif

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_CPU_AVX512_BF16_H_
