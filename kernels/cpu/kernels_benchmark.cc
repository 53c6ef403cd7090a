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
#include "kernels/check.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/machine_peak.h"
#include "kernels/cpu/target.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernel.h"
#include "kernels/loss/loss_row.h"
#include "kernels/op_table.h"

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

struct Case {
  std::string name;
  std::string op;
  Attributes attributes;
  std::vector<TensorType> operands;
  std::vector<Dims> result_strides = {};
  double bytes = 0;  // 0: all operands and results
};

class Memory {
 public:
  // Small numbers everywhere: valid scalars, ids, powers and shards.
  Tensor Make(const TensorType& type) {
    memory_.emplace_back(std::max<int64_t>(8, type.span_bytes()) / 8 + 8);
    Tensor tensor{memory_.back().data(), type};
    const int64_t n = type.span_bytes() / SizeOf(type.dtype);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t draw = (i * 2654435761u >> 7) % 1000;
      const float value = static_cast<float>(draw) / 1000 + 0.001f;
      switch (type.dtype) {
        case DType::kF32:
          tensor.as<float>()[i] = value;
          break;
        case DType::kBF16:
          tensor.as<BFloat16>()[i] = BFloat16(value);
          break;
        case DType::kF64:
          tensor.as<double>()[i] = value;
          break;
        case DType::kI32:
          tensor.as<int32_t>()[i] = n == 1 ? 0 : static_cast<int32_t>(draw);
          break;
        default:
          tensor.as<int64_t>()[i] = 1;
      }
    }
    return tensor;
  }

 private:
  std::vector<std::vector<double>> memory_;
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

void RunCase(benchmark::State& state, const Case& c) {
  const auto pool = MakeThreadPool(static_cast<int>(state.range(0)));
  const OpDef* const op = FindOp(c.op);
  SG_CHECK(op != nullptr) << c.op;
  std::vector<TensorType> types;
  SG_CHECK_EQ(InferResults(*op, c.attributes, c.operands, &types),
              absl::OkStatus());
  for (size_t r = 0; r < c.result_strides.size(); ++r) {
    if (!c.result_strides[r].empty()) types[r].strides = c.result_strides[r];
  }
  Memory memory;
  std::vector<Tensor> operands, results;
  for (const TensorType& type : c.operands)
    operands.push_back(memory.Make(type));
  for (size_t r = 0; r < types.size(); ++r) {
    const int tied = TiedOperand(*op, c.attributes, operands.size(),
                                 types.size(), static_cast<int>(r));
    results.push_back(tied >= 0 ? Tensor{operands[tied].data, types[r]}
                                : memory.Make(types[r]));
  }
  const auto kernel =
      CpuKernels().Find(op->name, c.attributes, c.operands, types);
  SG_CHECK(kernel.ok()) << kernel.status().ToString();
  const int64_t workspace =
      (*kernel)->workspace == nullptr
          ? 0
          : (*kernel)->workspace(c.attributes, c.operands, types);
  KernelContext context;
  context.op = op;
  context.attributes = &c.attributes;
  context.operands = operands;
  context.results = results;
  context.workspace = memory.Make(TensorType(DType::kF64, {workspace / 8 + 1}));
  auto prepared = (*kernel)->prepare(context);
  SG_CHECK(prepared.ok()) << prepared.status().ToString();
  Lane lane;
  lane.pool = pool.get();
  const OpCost cost = CostOf(*op, c.attributes, c.operands, types);
  Measure(state, pool.get(),
          c.bytes > 0 ? c.bytes : static_cast<double>(cost.bytes),
          cost.matmul_flops,
          [&] { benchmark::DoNotOptimize((*prepared)->Launch(lane).ok()); });
}

// The head's softmax without its products: logits are read twice and written.
void RunSoftmax(benchmark::State& state) {
  constexpr int64_t kRows = 128, kVocabulary = 50304;
  const auto pool = MakeThreadPool(static_cast<int>(state.range(0)));
  Memory memory;
  const Tensor logits =
      memory.Make(TensorType(DType::kBF16, {kRows, kVocabulary}));
  Measure(state, pool.get(), 6.0 * kRows * kVocabulary, 0, [&] {
    pool->ParallelFor(kRows, 1, [&](int64_t begin, int64_t end) {
      for (; begin < end; ++begin) {
        BFloat16* row = logits.as<BFloat16>() + begin * kVocabulary;
        const LogSum sum =
            SG_BEST_CPU_TARGET(LogSumExp)(row, true, kVocabulary);
        SG_BEST_CPU_TARGET(ScaledSoftmax)(row, true, kVocabulary, sum, 1);
      }
    });
  });
}

Attributes Bias() { return Attributes().SetInt("bias", 1); }

std::vector<Case> Cases() {
  constexpr int64_t kTokens = 1024, kWidth = 768, kHidden = 3072;
  const auto bf16 = [](Dims shape) { return TensorType(DType::kBF16, shape); };
  const auto f32 = [](Dims shape) { return TensorType(DType::kF32, shape); };
  const TensorType x = bf16({kTokens, kWidth});
  const TensorType hidden = bf16({kTokens, kHidden});
  const TensorType wide = bf16({kTokens, 14336});
  const TensorType statistics = f32({kTokens});
  const TensorType f64 = TensorType(DType::kF64, {});
  const TensorType i32 = TensorType(DType::kI32, {});
  const TensorType i64 = TensorType(DType::kI64, {});
  const auto tanh = Attributes().SetInt("tanh", 1);
  const auto erf = Attributes().SetInt("tanh", 0);
  const int64_t params = int64_t{1} << 25;
  Attributes shard;
  shard.SetInts("segments", {0, params, 0}).SetString("group", "world");
  const Attributes adamw = Attributes(shard)
                               .SetInt("has_compute", 1)
                               .SetDouble("beta1_0", 0.9)
                               .SetDouble("beta2_0", 0.95)
                               .SetDouble("epsilon_0", 1e-8)
                               .SetDouble("weight_decay_0", 0.1);
  const TensorType flat = f32({params});
  // q, k and v side by side in one row.
  const auto heads = [&](int64_t count, int64_t width, int64_t row) {
    return TensorType(DType::kBF16, {1, kTokens, count, width},
                      {kTokens * row, row, width, 1});
  };
  const auto causal = Attributes().SetInt("causal", 1);
  const TensorType q = heads(12, 64, 2304), out = heads(12, 64, 768);
  const TensorType lse = f32({1, 12, kTokens});
  const TensorType lq = heads(32, 128, 6144), lk = heads(8, 128, 6144);
  const TensorType lout = heads(32, 128, 4096), llse = f32({1, 32, kTokens});
  return {
      {"pointwise/add", "add", {}, {x, x}},
      {"pointwise/gelu_tanh", "gelu", tanh, {hidden}},
      {"pointwise/gelu_tanh_gradient", "gelu_gradient", tanh, {hidden, hidden}},
      {"pointwise/gelu_erf", "gelu", erf, {hidden}},
      {"pointwise/swiglu", "swiglu", {}, {wide, wide}},
      {"pointwise/swiglu_gradient", "swiglu_gradient", {}, {wide, wide, wide}},
      {"pointwise/cast",
       "cast",
       Attributes().SetString("dtype", "F32"),
       {hidden}},
      {"norm/layer_norm",
       "layer_norm",
       Bias().SetDouble("epsilon", 1e-5),
       {x, bf16({kWidth}), bf16({kWidth})}},
      {"norm/layer_norm_gradient",
       "layer_norm_gradient",
       Bias().SetString("dtype", "F32"),
       {x, x, bf16({kWidth}), statistics, statistics}},
      {"norm/rms_norm",
       "rms_norm",
       Attributes().SetDouble("epsilon", 1e-5),
       {bf16({kTokens, 4096}), bf16({4096})}},
      {"norm/rms_norm_gradient",
       "rms_norm_gradient",
       Attributes().SetString("dtype", "F32"),
       {bf16({kTokens, 4096}), bf16({kTokens, 4096}), bf16({4096}),
        statistics}},
      {"matmul/column_sum",
       "column_sum",
       Attributes().SetString("dtype", "F32"),
       {hidden}},
      {"optimizer/adamw",
       "adamw",
       adamw,
       {flat, flat, flat, flat, bf16({params}), f32({8}),
        TensorType(DType::kF64, {8}), TensorType(DType::kF64, {8}), f64, i32},
       {},
       30.0 * params},
      {"optimizer/sum_of_squares", "sum_of_squares", shard, {flat}},
      {"optimizer/accumulate",
       "accumulate",
       {},
       {flat, flat, i64},
       {},
       12.0 * params},
      {"random/dropout",
       "dropout",
       Attributes().SetDouble("rate", 0.1).SetInt("seed", 1).SetInt("key", 2),
       {bf16({1, kTokens * kWidth}), TensorType(DType::kI64, {1}), i64}},
      {"embedding/embedding",
       "embedding",
       {},
       {TensorType(DType::kI32, {kTokens}), bf16({50304, kWidth})},
       {},
       4.0 * kTokens * kWidth},
      {"embedding/embedding_gradient",
       "embedding_gradient",
       Attributes().SetInt("rows", 50304).SetString("dtype", "F32"),
       {TensorType(DType::kI32, {kTokens}), x},
       {},
       4.0 * 50304 * kWidth + 2.0 * kTokens * kWidth},
      {"embedding/rotary",
       "rotary",
       Attributes().SetDouble("theta", 5e5),
       {lout, TensorType(DType::kI32, {kTokens})}},
      {"attention/gpt2", "attention", causal, {q, q, q}},
      {"attention/gpt2_gradient",
       "attention_gradient",
       causal,
       {out, q, q, q, out, lse},
       {q.strides, q.strides, q.strides}},
      {"attention/llama3", "attention", causal, {lq, lk, lk}},
      {"attention/llama3_gradient",
       "attention_gradient",
       causal,
       {lout, lq, lk, lk, lout, llse},
       {lq.strides, lk.strides, lk.strides}},
  };
}

bool RegisterAll() {
  static const auto& cases = *new std::vector<Case>(Cases());
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto add = [&](const std::string& name, auto run) {
    auto* const registered = benchmark::RegisterBenchmark(name.c_str(), run);
    registered->UseRealTime()->Arg(1);
    if (cores > 1) registered->Arg(cores);
  };
  for (const Case& c : cases)
    add(c.name, [&c](benchmark::State& state) { RunCase(state, c); });
  add("loss/softmax", RunSoftmax);
  return true;
}

[[maybe_unused]] const bool registered = RegisterAll();

}  // namespace
}  // namespace shardgraph
