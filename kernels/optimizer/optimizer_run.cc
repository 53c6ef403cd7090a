#include "kernels/optimizer/optimizer_run.h"

#include <cstdint>
#include <cstring>

#include "kernels/cpu/vector.h"
#include "kernels/random/random_vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

static_assert(kSquareSums == kLanes);

// Some elements of a run: a vector of them, or with `part` fewer.
template <bool part>
struct Span {
  int64_t at;
  int64_t count;            // with `part`
  const uint32_t* numbers;  // random ones, one for each

  template <typename T>
  __attribute__((always_inline)) Vector Load(const T* from) const {
    if constexpr (part) {
      return LoadPart(from + at, count);
    } else {
      return LoadVector(from + at);
    }
  }
  template <typename T>
  __attribute__((always_inline)) void Store(Vector value, T* to) const {
    if constexpr (part) {
      StorePart(value, count, to + at);
    } else {
      StoreVector(value, to + at);
    }
  }
  // Moments: those in FP32 as they are, those in BF16 rounded by chance.
  template <int index>
  __attribute__((always_inline)) void StoreMoment(Vector value,
                                                  float* to) const {
    Store(value, to);
  }
  template <int index>
  __attribute__((always_inline)) void StoreMoment(Vector value,
                                                  uint16_t* to) const {
    WordVector number;
    std::memcpy(&number, numbers, sizeof(number));
    number = index == 0 ? number & 0xffffu : number >> 16;
    const WordVector bits = (WordVector)value;
    const WordVector rounded = (bits + number) & 0xffff0000u;
    const auto finite = (bits & 0x7f800000u) != 0x7f800000u;
    Store((Vector)(finite ? rounded : bits), to);
  }
};

template <typename Update>
SG_VECTOR_INLINE void ForSpans(int64_t begin, int64_t end,
                               const uint32_t* numbers, Update update) {
  ForVectors(
      end - begin,
      [=](int64_t i) {
        update(Span<false>{begin + i, kWidth,
                           numbers == nullptr ? nullptr : numbers + i});
      },
      [=](int64_t i, int64_t count) {
        update(Span<true>{begin + i, count,
                          numbers == nullptr ? nullptr : numbers + i});
      });
}

// Calls update(span, moment type) for all elements of the run.
template <typename Update>
SG_VECTOR_INLINE void ForMoments(const OptimizerRun& run, Update update) {
  if (!run.rounds) {
    ForSpans(0, run.n, nullptr,
             [=](auto span) { update(span, static_cast<float*>(nullptr)); });
    return;
  }
  constexpr int64_t kStep = 4 * kWidth;
  const int64_t ahead = static_cast<int64_t>(run.element % 4);
  uint32_t numbers[kStep + kWidth] = {};  // read a vector at a time
  for (int64_t i = -ahead; i < run.n; i += kStep) {
    RandomBlocks(run.key, run.stream, (run.element + i) / 4, numbers);
    const int64_t begin = i < 0 ? 0 : i;
    const int64_t end = run.n < i + kStep ? run.n : i + kStep;
    ForSpans(begin, end, numbers + (begin - i),
             [=](auto span) { update(span, static_cast<uint16_t*>(nullptr)); });
  }
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

// The moments at their type.
template <int index, typename T>
SG_VECTOR_INLINE T* Moment(const OptimizerRun& run, T*) {
  return static_cast<T*>(run.moments[index]);
}

}  // namespace

void AdamW(const AdamWScalars& scalars, const OptimizerRun& run) {
  const AdamWScalars s = scalars;
  float* const p = run.master;
  const float* const g = run.gradient;
  WithCompute(run, [&](auto* compute) {
    ForMoments(run, [=, &run](auto span, auto* type) {
      auto* const m = Moment<0>(run, type);
      auto* const v = Moment<1>(run, type);
      const Vector parameter = span.Load(p);
      const Vector d = span.Load(g) * s.gradient_scale + s.l2 * parameter;
      const Vector old = span.Load(m);
      const Vector average = old + s.one_minus_beta1 * (d - old);
      const Vector square = span.Load(v) * s.beta2 + s.one_minus_beta2 * d * d;
      const Vector denominator =
          SquareRoot(square) / s.root_correction2 + s.epsilon;
      const Vector updated =
          parameter * s.decay + s.step * average / denominator;
      span.template StoreMoment<0>(average, m);
      span.template StoreMoment<1>(square, v);
      span.Store(updated, p);
      if (compute != nullptr) span.Store(updated, compute);
    });
  });
}

void Sgd(const SgdScalars& scalars, const OptimizerRun& run) {
  const SgdScalars s = scalars;
  float* const p = run.master;
  const float* const g = run.gradient;
  WithCompute(run, [&](auto* compute) {
    ForMoments(run, [=, &run](auto span, auto* type) {
      auto* const buffer = Moment<0>(run, type);
      const Vector old = span.Load(p);
      Vector d = span.Load(g) * s.gradient_scale + s.weight_decay * old;
      if (buffer != nullptr) {
        d = span.Load(buffer) * s.momentum + d;
        span.template StoreMoment<0>(d, buffer);
      }
      const Vector updated = old - s.rate * d;
      span.Store(updated, p);
      if (compute != nullptr) span.Store(updated, compute);
    });
  });
}

void Lion(const LionScalars& scalars, const OptimizerRun& run) {
  const LionScalars s = scalars;
  float* const p = run.master;
  const float* const g = run.gradient;
  WithCompute(run, [&](auto* compute) {
    ForMoments(run, [=, &run](auto span, auto* type) {
      auto* const m = Moment<0>(run, type);
      const Vector d = span.Load(g) * s.gradient_scale;
      const Vector old = span.Load(m);
      const Vector c = old * s.beta1 + s.one_minus_beta1 * d;
      const Vector rate = Broadcast(s.rate);
      const Vector move = c > 0.0f ? rate : c < 0.0f ? -rate : Vector{};
      const Vector updated = span.Load(p) * s.decay - move;
      span.template StoreMoment<0>(old * s.beta2 + s.one_minus_beta2 * d, m);
      span.Store(updated, p);
      if (compute != nullptr) span.Store(updated, compute);
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
