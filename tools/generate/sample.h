// Sampling the next token from logits.
#ifndef TOOLS_GENERATE_SAMPLE_H_
#define TOOLS_GENERATE_SAMPLE_H_

#include <cstdint>
#include <vector>

namespace shardgraph {

struct SampleOptions {
  double temperature = 0.8;  // 0: the most likely token
  int64_t top_k = 0;         // only the k most likely; 0: all
  uint64_t seed = 1;
};

// Token number `index` of sample `sample`: a pure function of its arguments, so
// that all ranks draw alike. Ties go to the lower token; logits must be finite.
int32_t SampleToken(const std::vector<float>& logits,
                    const SampleOptions& options, int64_t sample,
                    int64_t index);

}  // namespace shardgraph

#endif  // TOOLS_GENERATE_SAMPLE_H_
