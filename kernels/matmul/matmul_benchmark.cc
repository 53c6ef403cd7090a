// Matrix products against oneDNN and against the multiply-adds that the
// processor can do, all three in turn, so that they see the same machine.
//
//   bazel run //tools:bench -- --benchmark_filter=matmul/
//
// Each benchmark is one of the three products of a linear layer on `rows` rows:
// forward y[rows, out] = x[rows, in] w[out, in]^T, dx = dy w, or dw = dy^T x
// (in FP32). Counters are the best of all rounds, in FLOP/s: `ours`; `onednn`
// (FP32, or BF16 where the processor has AMX or AVX-512 BF16); `peak`, FP32
// multiply-adds in registers; `of_peak` and `of_onednn`, ratios. The time is
// ours. With several threads set OMP_WAIT_POLICY=passive, or oneDNN's keep the
// cores from ours.
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "benchmark/benchmark.h"
#include "kernels/benchmark/large_pages.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/matmul/gemm.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace shardgraph {
namespace {

enum Direction { kForward, kInputGradient, kWeightGradient };

struct Layer {
  int64_t rows, out, in;
};

// a[m, k] b[k, n] with what it needs to run, here and on oneDNN.
class Product {
 public:
  Product(Direction direction, const Layer& layer, DType dtype)
      : dtype_(dtype) {
    const auto [rows, out, in] = layer;
    switch (direction) {
      case kForward:
        Set(rows, out, in, false, true);
        break;
      case kInputGradient:
        Set(rows, in, out, false, false);
        break;
      case kWeightGradient:
        Set(out, in, rows, true, false);
        c_dtype_ = DType::kF32;
        break;
    }
    a_ = Fill(problem_.m * problem_.k);
    b_ = Fill(problem_.k * problem_.n);
    c_ = std::make_unique<LargePages>(problem_.m * problem_.n *
                                      SizeOf(c_dtype_));
    problem_.a = MatrixOf(*a_, problem_.m, problem_.k, transpose_a_);
    problem_.b = MatrixOf(*b_, problem_.k, problem_.n, transpose_b_);
    SetGemmResult({c_->data(), TensorType(c_dtype_, {problem_.m, problem_.n})},
                  &problem_);
    options_.scratch_bytes =
        GemmScratchBytes(problem_.m, problem_.n, problem_.k);
    scratch_ = std::make_unique<LargePages>(options_.scratch_bytes);
    options_.scratch = scratch_->data();
  }

  double flops() const { return 2.0 * problem_.m * problem_.n * problem_.k; }

  void Run(ThreadPool* pool) { RunGemm(problem_, pool, options_); }

  void PrepareOneDnn() {
    using dnnl::memory;
    const auto type = [](DType dtype) {
      return dtype == DType::kBF16 ? memory::data_type::bf16
                                   : memory::data_type::f32;
    };
    const auto desc = [&](const GemmMatrix& matrix, int64_t rows,
                          int64_t columns) {
      return memory::desc(
          {rows, columns}, type(dtype_),
          memory::dims{matrix.row_stride, matrix.column_stride});
    };
    const memory::desc a = desc(problem_.a, problem_.m, problem_.k);
    const memory::desc b = desc(problem_.b, problem_.k, problem_.n);
    const memory::desc c({problem_.m, problem_.n}, type(c_dtype_),
                         memory::dims{problem_.n, 1});
    matmul_ = dnnl::matmul(
        dnnl::matmul::primitive_desc(dnnl::matmul::desc(a, b, c), engine_));
    arguments_ = {{DNNL_ARG_SRC, memory(a, engine_, a_->data())},
                  {DNNL_ARG_WEIGHTS, memory(b, engine_, b_->data())},
                  {DNNL_ARG_DST, memory(c, engine_, c_->data())}};
  }
  void RunOneDnn() {
    matmul_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  void Set(int64_t m, int64_t n, int64_t k, bool transpose_a,
           bool transpose_b) {
    problem_.m = m;
    problem_.n = n;
    problem_.k = k;
    transpose_a_ = transpose_a;
    transpose_b_ = transpose_b;
  }
  std::unique_ptr<LargePages> Fill(int64_t count) const {
    auto memory = std::make_unique<LargePages>(count * SizeOf(dtype_));
    for (int64_t i = 0; i < count; ++i) {
      const float value = static_cast<float>(i * 7 % 11 - 5) / 8;
      if (dtype_ == DType::kBF16) {
        static_cast<BFloat16*>(memory->data())[i] = BFloat16(value);
      } else {
        static_cast<float*>(memory->data())[i] = value;
      }
    }
    return memory;
  }
  GemmMatrix MatrixOf(const LargePages& memory, int64_t rows, int64_t columns,
                      bool transposed) const {
    const Dims shape = transposed ? Dims{columns, rows} : Dims{rows, columns};
    const GemmMatrix matrix =
        AsGemmMatrix({memory.data(), TensorType(dtype_, shape)});
    return transposed ? Transposed(matrix) : matrix;
  }

  DType dtype_;
  DType c_dtype_ = dtype_;
  bool transpose_a_ = false, transpose_b_ = false;
  GemmProblem problem_;
  GemmOptions options_;
  std::unique_ptr<LargePages> a_, b_, c_, scratch_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::matmul matmul_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

template <typename F>
double Seconds(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

void Benchmark(benchmark::State& state, Direction direction, Layer layer,
               DType dtype, int threads) {
  const std::unique_ptr<ThreadPool> pool = MakeThreadPool(threads);
  omp_set_num_threads(threads);
  Product product(direction, layer, dtype);
  const bool with_onednn =
      dtype == DType::kF32 ||
      SupportedCpuTargets().back() >= CpuTarget::kAvx512Bf16;
  if (with_onednn) product.PrepareOneDnn();
  const auto multiply_add = SG_BEST_CPU_TARGET(MultiplyAdd);
  const int64_t flops_per_step = SG_BEST_CPU_TARGET(FlopsPerStep)();
  constexpr int64_t kSteps = 20000;
  double ours = 0, onednn = 0, peak = 0;
  for (auto _ : state) {
    const double seconds = Seconds([&] { product.Run(pool.get()); });
    state.SetIterationTime(seconds);
    ours = std::max(ours, product.flops() / seconds);
    if (with_onednn) {
      onednn = std::max(
          onednn, product.flops() / Seconds([&] { product.RunOneDnn(); }));
    }
    for (int i = 0; i < 10; ++i) {
      const double time = Seconds([&] {
        pool->ParallelFor(threads, 1, [&](int64_t, int64_t) {
          benchmark::DoNotOptimize(multiply_add(kSteps));
        });
      });
      peak = std::max(peak, 1.0 * threads * kSteps * flops_per_step / time);
    }
  }
  const auto rate = [](double value) {
    return benchmark::Counter(value, benchmark::Counter::kDefaults,
                              benchmark::Counter::kIs1000);
  };
  state.counters["ours"] = rate(ours);
  state.counters["peak"] = rate(peak);
  state.counters["of_peak"] = ours / peak;
  if (with_onednn) {
    state.counters["onednn"] = rate(onednn);
    state.counters["of_onednn"] = ours / onednn;
  }
}

void RegisterAll() {
  struct Shape {
    std::string name;
    Layer layer;
  };
  const Shape shapes[] = {
      {"gpt2_proj", {1024, 768, 768}},      {"gpt2_qkv", {1024, 2304, 768}},
      {"gpt2_fc", {1024, 3072, 768}},       {"gpt2_fc_out", {1024, 768, 3072}},
      {"gpt2_head", {1024, 50304, 768}},    {"llama3_qo", {1024, 4096, 4096}},
      {"llama3_down", {1024, 4096, 14336}},
  };
  const std::pair<std::string, Direction> directions[] = {
      {"forward", kForward}, {"dx", kInputGradient}, {"dw", kWeightGradient}};
  for (const Shape& shape : shapes) {
    for (const auto& [direction_name, direction] : directions) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const int threads : {1, 2}) {
          const std::string name = "matmul/" + shape.name + "/" +
                                   direction_name + "/" +
                                   std::string(DTypeName(dtype)) +
                                   "/threads:" + std::to_string(threads);
          benchmark::RegisterBenchmark(
              name.c_str(),
              [=, direction = direction,
               layer = shape.layer](benchmark::State& state) {
                Benchmark(state, direction, layer, dtype, threads);
              })
              ->UseManualTime()
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
}

[[maybe_unused]] const bool registered = (RegisterAll(), true);

}  // namespace
}  // namespace shardgraph
