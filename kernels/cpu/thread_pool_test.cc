#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace shardgraph {
namespace {

class ThreadPoolTest : public testing::TestWithParam<int> {};

TEST_P(ThreadPoolTest, CoversEveryElementOnceInRangesOfGrain) {
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(GetParam());
  EXPECT_EQ(pool->num_threads(), GetParam());
  for (const int64_t n : {0, 1, 2, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64, 2000}) {
      std::vector<int> visits(n, 0);
      std::mutex mutex;
      std::vector<std::pair<int64_t, int64_t>> ranges;
      pool->ParallelFor(n, grain, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[i];
        const std::lock_guard<std::mutex> lock(mutex);
        ranges.emplace_back(begin, end);
      });
      EXPECT_EQ(visits, std::vector<int>(n, 1)) << n << " by " << grain;
      EXPECT_EQ(static_cast<int64_t>(ranges.size()), (n + grain - 1) / grain);
      for (const auto& [begin, end] : ranges) {
        EXPECT_EQ(begin % grain, 0);
        EXPECT_LT(begin, end);
        EXPECT_LE(end - begin, grain);
      }
    }
  }
}

TEST_P(ThreadPoolTest, CallsInARowSeeEachOthersWrites) {
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(GetParam());
  constexpr int64_t kSize = 61;
  std::vector<int64_t> a(kSize, 1), b(kSize, 0);
  for (int round = 0; round < 500; ++round) {
    // Each element reads one that another thread may have written.
    pool->ParallelFor(kSize, 5, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) b[i] = a[kSize - 1 - i] + 1;
    });
    std::swap(a, b);
  }
  EXPECT_EQ(a, std::vector<int64_t>(kSize, 501));
}

TEST_P(ThreadPoolTest, BoundPoolWorks) {
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(GetParam(), {0});
  std::vector<int> visits(100, 0);
  pool->ParallelFor(100, 1, [&](int64_t begin, int64_t) { ++visits[begin]; });
  EXPECT_EQ(visits, std::vector<int>(100, 1));
}

// 16 threads are more than the cores of most machines that run this.
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, testing::Values(1, 2, 3, 16));

TEST(ThreadPoolTest, AllThreadsTakePartAndAreWaitedFor) {
  // Each body waits for the other one: this ends only if both run at once.
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(2);
  const std::thread::id caller = std::this_thread::get_id();
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> arrived{0};
    bool worker_finished = false;
    pool->ParallelFor(2, 1, [&](int64_t, int64_t) {
      arrived.fetch_add(1);
      while (arrived.load() < 2) std::this_thread::yield();
      if (std::this_thread::get_id() == caller) return;
      for (int i = 0; i < 1000; ++i) std::this_thread::yield();
      worker_finished = true;
    });
    EXPECT_TRUE(worker_finished);
  }
}

TEST(ThreadPoolTest, IdlePoolsCanBeDestroyedAtOnce) {
  for (int i = 0; i < 50; ++i) MakeThreadPool(4);
}

}  // namespace
}  // namespace shardgraph
