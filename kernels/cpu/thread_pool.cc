#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/check.h"
#include "kernels/cpu/signal.h"

namespace shardgraph {
namespace {

class Pool final : public ThreadPool {
 public:
  Pool(int num_threads, const CpuSet& binding) {
    SG_CHECK_GE(num_threads, 1);
    workers_.reserve(num_threads - 1);
    for (int i = 1; i < num_threads; ++i) {
      workers_.emplace_back([this, binding] {
        BindThisThread(binding);
        Work();
      });
    }
  }

  ~Pool() override {
    stop_.store(true, std::memory_order_relaxed);
    epoch_.Add(1);
    epoch_.Wake();
    for (std::thread& worker : workers_) worker.join();
  }

  int num_threads() const override {
    return static_cast<int>(workers_.size()) + 1;
  }

  void ParallelFor(
      int64_t n, int64_t grain,
      absl::FunctionRef<void(int64_t begin, int64_t end)> body) override {
    if (n <= 0) return;
    SG_CHECK_GE(grain, 1);
    if (grain >= n) return body(0, n);
    const int64_t ranges = (n - 1) / grain + 1;
    n_ = n;
    grain_ = grain;
    if (workers_.empty()) {
      for (int64_t i = 0; i < ranges; ++i) RunRange(body, i);
      return;
    }
    body_ = &body;
    ranges_ = ranges;
    next_.store(0, std::memory_order_relaxed);
    gate_.Or(kOpen);
    epoch_.Add(1);
    epoch_.Wake(static_cast<int>(std::min<int64_t>(ranges, num_threads()) - 1));
    TakeRanges();
    // Late workers find the gate closed; those inside are waited for.
    if (gate_.And(~kOpen) != 0) {
      gate_.Await([](uint32_t inside) { return inside == 0; });
    }
  }

 private:
  // Bit of gate_: workers may take ranges. The other bits count the workers
  // inside.
  static constexpr uint32_t kOpen = 1u << 31;

  void RunRange(const absl::FunctionRef<void(int64_t, int64_t)>& body,
                int64_t i) {
    const int64_t begin = i * grain_;
    body(begin, std::min(n_ - begin, grain_) + begin);
  }

  void TakeRanges() {
    for (;;) {
      const int64_t i = next_.fetch_add(1, std::memory_order_relaxed);
      if (i >= ranges_) return;
      RunRange(*body_, i);
    }
  }

  void Work() {
    uint32_t seen = 0;
    for (;;) {
      seen = epoch_.Await([seen](uint32_t epoch) { return epoch != seen; });
      if (stop_.load(std::memory_order_relaxed)) return;
      // A worker may enter the call after the one it was woken for: then it
      // helps there, and finds nothing left when it comes again.
      if (gate_.Add(1) & kOpen) TakeRanges();
      if (gate_.Subtract(1) == 0) gate_.Wake();
    }
  }

  // The call in progress; written while no worker is inside an open gate.
  const absl::FunctionRef<void(int64_t, int64_t)>* body_ = nullptr;
  int64_t n_ = 0;
  int64_t grain_ = 1;
  int64_t ranges_ = 0;

  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) Signal gate_;
  alignas(64) Signal epoch_;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<ThreadPool> MakeThreadPool(int num_threads,
                                           const CpuSet& binding) {
  return std::make_unique<Pool>(num_threads, binding);
}

void BindThisThread(const CpuSet& binding) {
  if (binding.empty()) return;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : binding) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_SET(core, &cores);
  }
  pthread_setaffinity_np(pthread_self(), sizeof(cores), &cores);
}

}  // namespace shardgraph
