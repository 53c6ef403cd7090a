// What the CPU backend itself costs per command, with kernels that do nothing.
//
//   bazel run //tools:bench -- --benchmark_filter=BM_
#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/check.h"
#include "kernels/cpu/backend.h"
#include "kernels/kernel.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int kNodes = 1000;

std::unique_ptr<Backend> MakeBackend(int num_lanes) {
  static const KernelTable* const table = new KernelTable({});
  auto backend = MakeCpuBackend({.kernels = table});
  SG_CHECK_OK(backend);
  SG_CHECK_OK((*backend)->Prepare(num_lanes, kNodes));
  return *std::move(backend);
}

// Nodes in turn on all lanes, each after its predecessor: with several lanes
// every edge crosses lanes.
void Walk(Backend& backend, int num_lanes, PreparedKernel* kernel) {
  for (int i = 0; i < kNodes; ++i) {
    const int lane = i % num_lanes;
    if (i > 0) backend.Wait(lane, i - 1);
    backend.Launch(lane, kernel);
    backend.Record(lane, i);
  }
}

void Finish(benchmark::State& state) {
  state.counters["per_node"] = benchmark::Counter(
      static_cast<double>(state.iterations() * kNodes),
      benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_Eager(benchmark::State& state) {
  const int num_lanes = static_cast<int>(state.range(0));
  const auto kernel = MakeKernel([](Lane&) {});
  const auto backend = MakeBackend(num_lanes);
  for (auto _ : state) {
    Walk(*backend, num_lanes, kernel.get());
    SG_CHECK_OK(backend->Synchronize());
  }
  Finish(state);
}

void BM_Replay(benchmark::State& state) {
  const int num_lanes = static_cast<int>(state.range(0));
  const auto kernel = MakeKernel([](Lane&) {});
  const auto backend = MakeBackend(num_lanes);
  SG_CHECK_OK(backend->BeginCapture());
  Walk(*backend, num_lanes, kernel.get());
  auto recording = backend->EndCapture();
  SG_CHECK_OK(recording);
  for (auto _ : state) {
    backend->Replay(recording->get());
    SG_CHECK_OK(backend->Synchronize());
  }
  Finish(state);
}

BENCHMARK(BM_Eager)->Arg(1)->Arg(2)->Arg(3)->UseRealTime();
BENCHMARK(BM_Replay)->Arg(1)->Arg(2)->Arg(3)->UseRealTime();

void BM_ParallelFor(benchmark::State& state) {
  const auto pool = MakeThreadPool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool->ParallelFor(state.range(0), 1, [](int64_t, int64_t) {});
  }
}
BENCHMARK(BM_ParallelFor)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

}  // namespace
}  // namespace shardgraph
