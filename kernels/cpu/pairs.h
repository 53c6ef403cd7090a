// Sixteen pairs of BF16 numbers, for sources compiled with SG_CPU_TARGET
// defined (kernels/cpu/target.h) for vectors of 64 bytes.
#ifndef KERNELS_CPU_PAIRS_H_
#define KERNELS_CPU_PAIRS_H_

#include <cstdint>
#include <utility>

#include "kernels/cpu/vector_math.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// The first number of a pair is in the lower half.
typedef uint32_t Pairs __attribute__((vector_size(64)));
constexpr int kPairs = 16;  // of a vector

// Sixteen pairs of 32 numbers: the first with the seventeenth and so on.
template <int... kPair>
SG_VECTOR_INLINE Pairs PairHalves(Pairs numbers,
                                  std::integer_sequence<int, kPair...>) {
  typedef uint16_t Numbers __attribute__((vector_size(64)));
  return (Pairs)__builtin_shufflevector((Numbers)numbers, (Numbers)numbers,
                                        (kPair % 2 * kPairs + kPair / 2)...);
}
SG_VECTOR_INLINE Pairs PairHalves(Pairs numbers) {
  return PairHalves(numbers, std::make_integer_sequence<int, 2 * kPairs>());
}

// Exchanges blocks of kStep x kStep of the 16 x 16 matrix.
template <int kStep, int... kLane>
SG_VECTOR_INLINE void TransposeStep(Pairs* rows,
                                    std::integer_sequence<int, kLane...>) {
#pragma GCC unroll 16
  for (int i = 0; i < kPairs; ++i) {
    if ((i & kStep) != 0) continue;
    const Pairs upper = rows[i];
    const Pairs lower = rows[i + kStep];
    rows[i] = __builtin_shufflevector(
        upper, lower,
        ((kLane & kStep) != 0 ? kPairs + kLane - kStep : kLane)...);
    rows[i + kStep] = __builtin_shufflevector(
        upper, lower,
        ((kLane & kStep) != 0 ? kPairs + kLane : kLane + kStep)...);
  }
}

// Transposes a matrix of 16 x 16 pairs.
SG_VECTOR_INLINE void TransposePairs(Pairs* rows) {
  constexpr std::make_integer_sequence<int, kPairs> lanes;
  TransposeStep<8>(rows, lanes);
  TransposeStep<4>(rows, lanes);
  TransposeStep<2>(rows, lanes);
  TransposeStep<1>(rows, lanes);
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_CPU_PAIRS_H_
