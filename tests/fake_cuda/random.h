// The double's random numbers: SplitMix64, a few bits at a time.
#ifndef TESTS_FAKE_CUDA_RANDOM_H_
#define TESTS_FAKE_CUDA_RANDOM_H_

#include <cstdint>

namespace shardgraph::fake_cuda {

class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n), n > 0.
  uint64_t Below(uint64_t n) { return Next() % n; }

 private:
  uint64_t state_;
};

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_RANDOM_H_
