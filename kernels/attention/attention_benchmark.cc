// Attention against the composition of oneDNN's primitives: products of all
// heads at once and softmax, without the mask and the scale, which would only
// cost it time. Both in turn, so that they see the same machine.
//
//   bazel run //tools:bench -- --benchmark_filter=attention_onednn/
//
// Shapes are gpt2_124m's: 12 heads of width 64, 1,024 tokens, causal. oneDNN
// gets heads that lie behind each other, as it likes them, and keeps the
// probabilities for the gradient; ours reads q, k and v side by side in one row
// and keeps a number per row. Counters are the best of all rounds, in
// milliseconds: `ours`; `onednn` (BF16 where the processor has AMX or AVX-512
// BF16, else FP32); `ratio`, onednn over ours. The time is ours. With several
// threads set OMP_WAIT_POLICY=passive, or oneDNN's keep the cores from ours.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/benchmark/kernel_cases.h"
#include "kernels/benchmark/large_pages.h"
#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace shardgraph {
namespace {

using dnnl::memory;

constexpr int64_t kHeads = 12, kTokens = 1024, kWidth = 64;

// One after the other on oneDNN.
class Composition {
 public:
  explicit Composition(bool bf16)
      : type_(bf16 ? memory::data_type::bf16 : memory::data_type::f32) {}

  // [heads, rows, columns], transposed in memory if asked for.
  memory::desc Heads(int64_t rows, int64_t columns, bool transposed = false) {
    return memory::desc({kHeads, rows, columns}, type_,
                        transposed ? memory::dims{rows * columns, 1, rows}
                                   : memory::dims{rows * columns, columns, 1});
  }
  memory Make(const memory::desc& desc) {
    pages_.emplace_back(desc.get_size());
    memory made(desc, engine_, pages_.back().data());
    // From 1/128 on to below 1/32, of either sign, as BF16 and as FP32:
    // processors compute faster on equal numbers.
    auto* const words = static_cast<uint16_t*>(made.get_data_handle());
    std::generate_n(words, desc.get_size() / sizeof(uint16_t), [this] {
      const uint32_t bits = static_cast<uint32_t>(random_()) >> 8;
      return static_cast<uint16_t>(0x3c00 | (bits & 0x80ff));
    });
    return made;
  }
  // The same memory as the other way round.
  memory Transposed(const memory& plain, int64_t rows, int64_t columns) {
    return memory(Heads(rows, columns, true), engine_, plain.get_data_handle());
  }

  void AddMatmul(const memory& a, const memory& b, const memory& c) {
    const dnnl::matmul::primitive_desc what(
        dnnl::matmul::desc(a.get_desc(), b.get_desc(), c.get_desc()), engine_);
    steps_.push_back(
        {dnnl::matmul(what),
         {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}}});
  }
  void AddSoftmax(const memory& scores, const memory& probabilities) {
    const dnnl::softmax_forward::primitive_desc what(
        SoftmaxDesc(scores.get_desc()), engine_);
    steps_.push_back({dnnl::softmax_forward(what),
                      {{DNNL_ARG_SRC, scores}, {DNNL_ARG_DST, probabilities}}});
  }
  void AddSoftmaxGradient(const memory& probabilities, const memory& dp,
                          const memory& ds) {
    const dnnl::softmax_forward::primitive_desc forward(
        SoftmaxDesc(probabilities.get_desc()), engine_);
    const dnnl::softmax_backward::primitive_desc what(
        dnnl::softmax_backward::desc(dp.get_desc(), probabilities.get_desc(),
                                     2),
        engine_, forward);
    steps_.push_back({dnnl::softmax_backward(what),
                      {{DNNL_ARG_DST, probabilities},
                       {DNNL_ARG_DIFF_DST, dp},
                       {DNNL_ARG_DIFF_SRC, ds}}});
  }

  void Run() {
    for (Step& step : steps_) step.primitive.execute(stream_, step.arguments);
    stream_.wait();
  }

 private:
  struct Step {
    dnnl::primitive primitive;
    std::unordered_map<int, memory> arguments;
  };

  static dnnl::softmax_forward::desc SoftmaxDesc(const memory::desc& desc) {
    return dnnl::softmax_forward::desc(dnnl::prop_kind::forward_training, desc,
                                       2);
  }

  memory::data_type type_;
  std::minstd_rand random_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<Step> steps_;
  std::vector<LargePages> pages_;
};

void AddForward(Composition* onednn) {
  const memory q = onednn->Make(onednn->Heads(kTokens, kWidth));
  const memory k = onednn->Make(onednn->Heads(kTokens, kWidth));
  const memory v = onednn->Make(onednn->Heads(kTokens, kWidth));
  const memory out = onednn->Make(onednn->Heads(kTokens, kWidth));
  const memory scores = onednn->Make(onednn->Heads(kTokens, kTokens));
  onednn->AddMatmul(q, onednn->Transposed(k, kWidth, kTokens), scores);
  onednn->AddSoftmax(scores, scores);
  onednn->AddMatmul(scores, v, out);
}

void AddGradient(Composition* onednn) {
  const auto rows = [&] {
    return onednn->Make(onednn->Heads(kTokens, kWidth));
  };
  const memory q = rows(), k = rows(), v = rows(), dout = rows();
  const memory p = onednn->Make(onednn->Heads(kTokens, kTokens));
  const memory dp = onednn->Make(onednn->Heads(kTokens, kTokens));
  onednn->AddMatmul(dout, onednn->Transposed(v, kWidth, kTokens), dp);
  onednn->AddMatmul(onednn->Transposed(p, kTokens, kTokens), dout, rows());
  onednn->AddSoftmaxGradient(p, dp, dp);
  onednn->AddMatmul(dp, k, rows());
  onednn->AddMatmul(onednn->Transposed(dp, kTokens, kTokens), q, rows());
}

template <typename F>
double Milliseconds(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now() - begin)
      .count();
}

void Benchmark(benchmark::State& state, bool gradient, int threads) {
  const auto cases = KernelCases(kTokens);
  const std::string name =
      gradient ? "attention/gpt2_gradient" : "attention/gpt2";
  const auto found =
      std::find_if(cases.begin(), cases.end(),
                   [&](const KernelCase& c) { return c.name == name; });
  SG_CHECK(found != cases.end());
  const auto pool = MakeThreadPool(threads);
  Lane lane;
  lane.pool = pool.get();
  HostMemory host;
  const BoundKernelCase kernel(*found, CpuKernels(), host);
  omp_set_num_threads(threads);
  Composition onednn(SupportedCpuTargets().back() >= CpuTarget::kAvx512Bf16);
  if (gradient) {
    AddGradient(&onednn);
  } else {
    AddForward(&onednn);
  }
  onednn.Run();
  double ours = std::numeric_limits<double>::infinity(), theirs = ours;
  for (auto _ : state) {
    const double time = Milliseconds(
        [&] { SG_CHECK_EQ(kernel.kernel().Launch(lane), absl::OkStatus()); });
    state.SetIterationTime(time / 1e3);
    ours = std::min(ours, time);
    theirs = std::min(theirs, Milliseconds([&] { onednn.Run(); }));
  }
  state.counters["ours"] = ours;
  state.counters["onednn"] = theirs;
  state.counters["ratio"] = theirs / ours;
}

[[maybe_unused]] const bool registered = [] {
  for (const bool gradient : {false, true}) {
    for (const int threads : {1, 2}) {
      const std::string name = std::string("attention_onednn/gpt2") +
                               (gradient ? "_gradient" : "") +
                               "/threads:" + std::to_string(threads);
      benchmark::RegisterBenchmark(
          name.c_str(),
          [=](benchmark::State& state) { Benchmark(state, gradient, threads); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  return true;
}();

}  // namespace
}  // namespace shardgraph
