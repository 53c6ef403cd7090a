// Thread pools for tests of kernels.
#ifndef KERNELS_TESTING_THREAD_POOLS_H_
#define KERNELS_TESTING_THREAD_POOLS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

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

// `num_threads` threads started for each loop, ranges of `grain` handed out in
// order.
class SpawningPool final : public ThreadPool {
 public:
  explicit SpawningPool(int num_threads) : num_threads_(num_threads) {}
  int num_threads() const override { return num_threads_; }
  void ParallelFor(int64_t n, int64_t grain,
                   absl::FunctionRef<void(int64_t, int64_t)> body) override {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
      for (int64_t begin; (begin = next.fetch_add(grain)) < n;)
        body(begin, std::min(n, begin + grain));
    };
    std::vector<std::thread> threads;
    for (int i = 1; i < num_threads_; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const int num_threads_;
};

}  // namespace shardgraph

#endif  // KERNELS_TESTING_THREAD_POOLS_H_
