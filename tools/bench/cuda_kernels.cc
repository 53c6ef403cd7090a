// CUDA kernels by family, captured and eager, beside what this GPU copies.
//
//   bazel run //tools:bench -- --device=cuda --benchmark_filter=Cuda
//
// Cases are those of the CPU (kernels/benchmark), with 16,384 rows. Counters,
// from the fastest of several replays of 20 launches:
//   best_us  a launch, in microseconds
//   GB/s     operands and results moved once; "of_copy" is its share of what a
//            copy of 1 GiB within the device moves
//   TFLOP/s  of matrix products
// CudaNodes: what a kernel that does next to nothing takes in a row of 500.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/benchmark/kernel_cases.h"
#include "kernels/check.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/status_macros.h"
#include "tools/bench/steps.h"

namespace shardgraph {
namespace {

constexpr int64_t kRows = 16384;

std::unique_ptr<Backend> MakeBackend() {
  auto backend = MakeCudaBackend({.kernels = &CudaKernels()});
  SG_CHECK_OK(backend);
  return *std::move(backend);
}

// Filled on the host, copied once.
class DeviceMemory final : public TensorMaker {
 public:
  explicit DeviceMemory(Backend& backend) : backend_(backend) {}

  Tensor Make(const TensorType& type) override {
    const int64_t bytes = type.span_bytes();
    std::vector<double> host(bytes / 8 + 1);
    Fill(type, host.data());
    const auto memory = backend_.Allocate(std::max<int64_t>(bytes, 1));
    SG_CHECK_OK(memory);
    SG_CHECK_OK(backend_.CopyToDevice(*memory, host.data(), bytes));
    return Tensor{*memory, type};
  }

 private:
  Backend& backend_;
};

// Seconds of one of `count` launches in a row, at best.
double Time(benchmark::State& state, Backend& backend, PreparedKernel& kernel,
            int count, bool captured) {
  using Clock = std::chrono::steady_clock;
  const auto walk = [&] {
    for (int i = 0; i < count; ++i) backend.Launch(0, &kernel);
  };
  walk();
  SG_CHECK_OK(backend.Synchronize());
  std::unique_ptr<Backend::Recording> recording;
  if (captured) {
    SG_CHECK_OK(backend.BeginCapture());
    walk();
    auto ended = backend.EndCapture();
    SG_CHECK_OK(ended);
    recording = *std::move(ended);
    backend.Replay(recording.get());
    SG_CHECK_OK(backend.Synchronize());
  }
  double best = 1e9;
  for (auto _ : state) {
    const Clock::time_point begin = Clock::now();
    if (captured) {
      backend.Replay(recording.get());
    } else {
      walk();
    }
    SG_CHECK_OK(backend.Synchronize());
    best = std::min(
        best, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return best / count;
}

// Bytes a second of a copy within the device, read and written.
double CopyBandwidth() {
  static const double bandwidth = [] {
    constexpr int64_t kBytes = int64_t{1} << 30;
    const auto backend = MakeBackend();
    SG_CHECK_OK(backend->Prepare(1, 0));
    const auto from = backend->Allocate(kBytes), to = backend->Allocate(kBytes);
    SG_CHECK_OK(from);
    SG_CHECK_OK(to);
    const auto copy = MakeKernel([&](Lane& lane) {
      return cuda::CudaStatus(
          cudaMemcpyAsync(*to, *from, kBytes, cudaMemcpyDeviceToDevice,
                          cuda::StreamOf(lane)),
          "copy");
    });
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      SG_CHECK_OK(backend->Synchronize());
      const auto begin = std::chrono::steady_clock::now();
      for (int k = 0; k < 10; ++k) backend->Launch(0, copy.get());
      SG_CHECK_OK(backend->Synchronize());
      best = std::min(best, std::chrono::duration<double>(
                                std::chrono::steady_clock::now() - begin)
                                .count());
    }
    return 10 * 2.0 * kBytes / best;
  }();
  return bandwidth;
}

void CudaKernel(benchmark::State& state, const KernelCase& c) {
  const auto backend = MakeBackend();
  DeviceMemory memory(*backend);
  const BoundKernelCase bound(c, CudaKernels(), memory);
  SG_CHECK_OK(backend->Prepare(1, 0));
  const double best =
      Time(state, *backend, bound.kernel(), 20, state.range(0) != 0);
  state.counters["best_us"] = best * 1e6;
  if (bound.flops() > 0) {
    state.counters["TFLOP/s"] = bound.flops() / best * 1e-12;
  } else {
    state.counters["GB/s"] = bound.bytes() / best * 1e-9;
    state.counters["of_copy"] = bound.bytes() / best / CopyBandwidth();
  }
}

void CudaNodes(benchmark::State& state) {
  const KernelCase c = {"",
                        "cast",
                        Attributes().SetString("dtype", "F32"),
                        {TensorType(DType::kBF16, {32})}};
  const auto backend = MakeBackend();
  DeviceMemory memory(*backend);
  const BoundKernelCase bound(c, CudaKernels(), memory);
  SG_CHECK_OK(backend->Prepare(1, 0));
  state.counters["per_node_us"] =
      1e6 * Time(state, *backend, bound.kernel(), 500, state.range(0) != 0);
}

}  // namespace

void RegisterCudaKernels() {
  static const auto& cases = *new std::vector<KernelCase>(KernelCases(kRows));
  const auto add = [](const std::string& name, auto run) {
    benchmark::RegisterBenchmark(name.c_str(), run)
        ->ArgName("captured")
        ->Arg(1)
        ->Arg(0)
        ->MinTime(0.05)
        ->UseRealTime();
  };
  for (const KernelCase& c : cases)
    add("Cuda/" + c.name,
        [&c](benchmark::State& state) { CudaKernel(state, c); });
  add("CudaNodes", CudaNodes);
}

}  // namespace shardgraph
