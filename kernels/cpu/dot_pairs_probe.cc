#include "kernels/cpu/dot_pairs_probe.h"

#include <cstring>

#include "kernels/cpu/dot_pairs.h"

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

}  // namespace shardgraph::SG_CPU_TARGET
