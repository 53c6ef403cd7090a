// The CPU kernels by family, each beside what this processor can do, measured
// in between: STREAM's triad from memory and multiply-adds in registers.
//
//   bazel run //tools:bench -- --benchmark_filter=attention/
//
// The argument is the number of threads. Shapes are those of gpt2_124m and
// llama3_8b at 1,024 tokens, in BF16. Counters, from the fastest launch:
//   best_us     its time in microseconds
//   GB/s        operands and results moved once; "of_triad" is its share of the
//               triad (above 1 where tensors stay in cache)
//   GFLOP/s     of matrix products; "of_fma" is its share of the multiply-adds
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/benchmark/kernel_cases.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernel.h"
#include "kernels/loss/loss_row.h"

namespace shardgraph {
namespace {

// Seconds. With one thread, which does everything, those that it ran: what else
// the machine does takes cache and memory from it, but no time.
double Now(int threads) {
  timespec time;
  clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC,
                &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

// The best of what was measured so far, on all threads of a pool.
class Peaks {
 public:
  explicit Peaks(ThreadPool* pool)
      : pool_(pool), a_(kTriad, 1), b_(kTriad, 2), c_(kTriad, 3) {}

  void Measure() {
    const int threads = pool_->num_threads();
    double begin = Now(threads);
    pool_->ParallelFor(kTriad, kTriad / 64, [&](int64_t from, int64_t to) {
      SG_BEST_CPU_TARGET(Triad)(to - from, &a_[from], &b_[from], &c_[from]);
    });
    bytes_ = std::max(bytes_, 12.0 * kTriad / (Now(threads) - begin));
    constexpr int64_t kSteps = 50000;
    begin = Now(threads);
    pool_->ParallelFor(threads, 1, [&](int64_t from, int64_t to) {
      for (; from < to; ++from)
        benchmark::DoNotOptimize(SG_BEST_CPU_TARGET(MultiplyAdd)(kSteps));
    });
    flops_ = std::max(flops_, threads * kSteps *
                                  double(SG_BEST_CPU_TARGET(FlopsPerStep)()) /
                                  (Now(threads) - begin));
  }
  double bytes() const { return bytes_; }
  double flops() const { return flops_; }

 private:
  static constexpr int64_t kTriad = int64_t{1} << 23;  // 96 MiB in all
  ThreadPool* const pool_;
  std::vector<float> a_, b_, c_;
  double bytes_ = 0;
  double flops_ = 0;
};

// Times `launch` beside the peaks. FLOPs of matrix products; 0: what counts is
// the bytes.
template <typename Launch>
void Measure(benchmark::State& state, ThreadPool* pool, double bytes,
             double flops, Launch launch) {
  const int threads = pool->num_threads();
  Peaks peaks(pool);
  double best = 1e9, last = 0;
  peaks.Measure();
  launch();
  for (auto _ : state) {
    const double begin = Now(threads);
    launch();
    const double end = Now(threads);
    best = std::min(best, end - begin);
    if (end - last > 0.1) {
      peaks.Measure();
      last = Now(threads);
    }
  }
  state.counters["best_us"] = best * 1e6;
  if (flops > 0) {
    state.counters["GFLOP/s"] = flops / best * 1e-9;
    state.counters["of_fma"] = flops / best / peaks.flops();
    state.counters["fma"] = peaks.flops() * 1e-9;
  } else {
    state.counters["GB/s"] = bytes / best * 1e-9;
    state.counters["of_triad"] = bytes / best / peaks.bytes();
    state.counters["triad"] = peaks.bytes() * 1e-9;
  }
}

void RunCase(benchmark::State& state, const KernelCase& c) {
  const auto pool = MakeThreadPool(static_cast<int>(state.range(0)));
  HostMemory memory;
  const BoundKernelCase bound(c, CpuKernels(), memory);
  Lane lane;
  lane.pool = pool.get();
  Measure(state, pool.get(), bound.bytes(), bound.flops(),
          [&] { benchmark::DoNotOptimize(bound.kernel().Launch(lane).ok()); });
}

// The head's softmax without its products: logits are read twice and written.
void RunSoftmax(benchmark::State& state) {
  constexpr int64_t kRows = 128, kVocabulary = 50304;
  const auto pool = MakeThreadPool(static_cast<int>(state.range(0)));
  HostMemory memory;
  const Tensor logits =
      memory.Make(TensorType(DType::kBF16, {kRows, kVocabulary}));
  Measure(state, pool.get(), 6.0 * kRows * kVocabulary, 0, [&] {
    pool->ParallelFor(kRows, 1, [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) {
        BFloat16* row = logits.as<BFloat16>() + begin * kVocabulary;
        const LogSum sum =
            SG_BEST_CPU_TARGET(LogSumExp)(row, true, kVocabulary);
        SG_BEST_CPU_TARGET(ScaledSoftmax)(row, true, kVocabulary, sum, 1, 0);
      }
    });
  });
}

bool RegisterAll() {
  static const auto& cases = *new std::vector<KernelCase>(KernelCases(1024));
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto add = [&](const std::string& name, auto run) {
    auto* const registered = benchmark::RegisterBenchmark(name.c_str(), run);
    registered->UseRealTime()->Arg(1);
    if (cores > 1) registered->Arg(cores);
  };
  for (const KernelCase& c : cases)
    add(c.name, [&c](benchmark::State& state) { RunCase(state, c); });
  add("loss/softmax", RunSoftmax);
  return true;
}

[[maybe_unused]] const bool registered = RegisterAll();

}  // namespace
}  // namespace shardgraph
