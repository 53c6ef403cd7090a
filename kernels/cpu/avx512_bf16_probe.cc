#include "kernels/cpu/avx512_bf16_probe.h"

#include <cstring>

#include "kernels/cpu/avx512_bf16.h"

namespace shardgraph::SG_CPU_TARGET {

void DotPairs(const uint32_t* a, const uint32_t* b, float* sums) {
  Pairs a_pairs, b_pairs;
  PairSums sum;
  std::memcpy(&a_pairs, a, sizeof(a_pairs));
  std::memcpy(&b_pairs, b, sizeof(b_pairs));
  std::memcpy(&sum, sums, sizeof(sum));
  AddDotPairs(a_pairs, b_pairs, &sum);
  std::memcpy(sums, &sum, sizeof(sum));
}

void Round(const float* first, const float* second, uint16_t* rounded) {
  PairSums a, b;
  std::memcpy(&a, first, sizeof(a));
  std::memcpy(&b, second, sizeof(b));
  const Pairs pairs = RoundToBf16(a, b);
  std::memcpy(rounded, &pairs, sizeof(pairs));
}

}  // namespace shardgraph::SG_CPU_TARGET
