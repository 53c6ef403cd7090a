#include "kernels/optimizer/optimizer_run.h"

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

static_assert(kSquareSums == kLanes);

// Calls update(load, store, i) for vectors at i, then for the rest.
template <typename Update>
SG_VECTOR_INLINE void ForEach(int64_t n, Update update) {
  ForVectors(
      n,
      [=](int64_t i) {
        update([i](const auto* from) { return LoadVector(from + i); },
               [i](Vector value, auto* to) { StoreVector(value, to + i); });
      },
      [=](int64_t i, int64_t count) {
        update(
            [=](const auto* from) { return LoadPart(from + i, count); },
            [=](Vector value, auto* to) { StorePart(value, count, to + i); });
      });
}

// Calls f with the compute copy by its type.
template <typename F>
SG_VECTOR_INLINE void WithCompute(const OptimizerRun& run, F f) {
  if (run.compute == nullptr) {
    f(static_cast<uint16_t*>(nullptr));
  } else if (run.compute_type == ElementType::kBF16) {
    f(static_cast<uint16_t*>(run.compute));
  } else if constexpr (kHasFloat16) {
    f(static_cast<Float16Bits*>(run.compute));
  }
}

}  // namespace

void AdamW(const AdamWScalars& scalars, const OptimizerRun& run) {
  const AdamWScalars s = scalars;
  float* const p = run.master;
  const float* const g = run.gradient;
  float* const m = run.exp_avg;
  float* const v = run.exp_avg_sq;
  WithCompute(run, [&](auto* compute) {
    ForEach(run.n, [=](auto load, auto store) {
      const Vector d = load(g) * s.gradient_scale;
      const Vector old = load(m);
      const Vector average = old + s.one_minus_beta1 * (d - old);
      const Vector square = load(v) * s.beta2 + s.one_minus_beta2 * d * d;
      const Vector denominator =
          SquareRoot(square) / s.root_correction2 + s.epsilon;
      const Vector updated = load(p) * s.decay + s.step * average / denominator;
      store(average, m);
      store(square, v);
      store(updated, p);
      if (compute != nullptr) store(updated, compute);
    });
  });
}

void Sgd(const SgdScalars& scalars, const OptimizerRun& run) {
  const SgdScalars s = scalars;
  float* const p = run.master;
  const float* const g = run.gradient;
  float* const buffer = run.momentum;
  WithCompute(run, [&](auto* compute) {
    ForEach(run.n, [=](auto load, auto store) {
      const Vector old = load(p);
      Vector d = load(g) * s.gradient_scale + s.weight_decay * old;
      if (buffer != nullptr) {
        d = load(buffer) * s.momentum + d;
        store(d, buffer);
      }
      const Vector updated = old - s.rate * d;
      store(updated, p);
      if (compute != nullptr) store(updated, compute);
    });
  });
}

void AddSquares(const float* x, int64_t n, float* sums) {
  LaneSum sum;
  for (int i = 0; i < LaneSum::kParts; ++i)
    sum.part[i] = LoadVector(sums + i * kWidth);
  ForLanes(n, [&](int64_t, int part, auto load) {
    const Vector value = load(x);
    sum.part[part] += value * value;
  });
  for (int i = 0; i < LaneSum::kParts; ++i)
    StoreVector(sum.part[i], sums + i * kWidth);
}

}  // namespace shardgraph::SG_CPU_TARGET
