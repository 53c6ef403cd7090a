// A thread pool for tests of kernels that divides loops as no other does.
#ifndef KERNELS_TESTING_UNEVEN_POOL_H_
#define KERNELS_TESTING_UNEVEN_POOL_H_

#include <algorithm>
#include <cstdint>

#include "kernels/lane.h"

namespace shardgraph {

// One thread; ranges of changing length, last range first. A result that
// depends on how a loop is divided or in which order it runs shows up against
// another pool.
class UnevenPool final : public ThreadPool {
 public:
  int num_threads() const override { return 1; }
  void ParallelFor(int64_t n, int64_t grain,
                   absl::FunctionRef<void(int64_t, int64_t)> body) override {
    int64_t end = n;
    for (uint64_t step = 1; end > 0; ++step) {
      const int64_t length =
          std::clamp<int64_t>(grain * (step % 3 + 1) / 3, 1, end);
      body(end - length, end);
      end -= length;
    }
  }
};

}  // namespace shardgraph

#endif  // KERNELS_TESTING_UNEVEN_POOL_H_
