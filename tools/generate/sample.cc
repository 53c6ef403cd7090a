#include "tools/generate/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"
#include "kernels/random/random.h"

namespace shardgraph {

int32_t SampleToken(const std::vector<float>& logits,
                    const SampleOptions& options, int64_t sample,
                    int64_t index) {
  SG_CHECK(!logits.empty()) << "no logits";
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (options.temperature == 0)
    return *std::min_element(order.begin(), order.end(), better);
  size_t kept = order.size();
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(kept)) {
    kept = static_cast<size_t>(options.top_k);
    std::partial_sort(order.begin(), order.begin() + kept, order.end(), better);
  }
  const float top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> cumulative(kept);
  double sum = 0;
  for (size_t i = 0; i < kept; ++i) {
    sum += std::exp((static_cast<double>(logits[order[i]]) - top) /
                    options.temperature);
    cumulative[i] = sum;
  }
  const RandomKey key = MakeRandomKey(options.seed, HashName("sample"), sample);
  const double draw = RandomUniform(key, index) * sum;
  const size_t i =
      std::upper_bound(cumulative.begin(), cumulative.end(), draw) -
      cumulative.begin();
  return order[std::min(i, kept - 1)];
}

}  // namespace shardgraph
