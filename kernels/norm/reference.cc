#include <cmath>
#include <vector>

#include "kernels/norm/norm.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

int64_t Rows(const Elements& x) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < x.type().rank(); ++i) rows *= x.dim(i);
  return rows;
}

// The norm of x, whose weight is operand `first`; results from `first - 1` on.
void LayerNormOf(const ReferenceCall& call, const Elements& x, int first) {
  const int64_t columns = x.dim(-1);
  const bool bias = call.attributes().Int("bias") != 0;
  for (int64_t row = 0; row < Rows(x); ++row) {
    const auto at = [&](int64_t c) { return x.GetFlat(row * columns + c); };
    double mean = 0;
    for (int64_t c = 0; c < columns; ++c) mean += at(c) / columns;
    double variance = 0;
    for (int64_t c = 0; c < columns; ++c)
      variance += (at(c) - mean) * (at(c) - mean) / columns;
    const double rstd =
        1 / std::sqrt(variance + call.attributes().Double("epsilon"));
    for (int64_t c = 0; c < columns; ++c) {
      const double h = (at(c) - mean) * rstd;
      call.Store(first - 1, row * columns + c,
                 h * call.operand(first).Get(c) +
                     (bias ? call.operand(first + 1).Get(c) : 0.0));
    }
    call.Store(first, row, mean);
    call.Store(first + 1, row, rstd);
  }
}

void LayerNorm(const ReferenceCall& call) {
  LayerNormOf(call, call.operand(0), 1);
}

void LayerNormGradient(const ReferenceCall& call) {
  const Elements& x = call.operand(1);
  const Elements& weight = call.operand(2);
  const int64_t columns = x.dim(-1);
  std::vector<double> dweight(columns), dbias(columns);
  for (int64_t row = 0; row < Rows(x); ++row) {
    const double mean = call.operand(3).GetFlat(row);
    const double rstd = call.operand(4).GetFlat(row);
    const auto dy = [&](int64_t c) {
      return call.operand(0).GetFlat(row * columns + c);
    };
    const auto h = [&](int64_t c) {
      return (x.GetFlat(row * columns + c) - mean) * rstd;
    };
    double sum_g = 0, sum_gh = 0;
    for (int64_t c = 0; c < columns; ++c) {
      sum_g += dy(c) * weight.Get(c);
      sum_gh += dy(c) * weight.Get(c) * h(c);
      dweight[c] += dy(c) * h(c);
      dbias[c] += dy(c);
    }
    if (Omits(call.attributes(), 0)) continue;
    for (int64_t c = 0; c < columns; ++c) {
      call.Store(0, row * columns + c,
                 rstd * (dy(c) * weight.Get(c) - sum_g / columns -
                         h(c) * sum_gh / columns));
    }
  }
  const bool bias = call.attributes().Int("bias") != 0;
  for (int64_t c = 0; c < columns; ++c) {
    if (!Omits(call.attributes(), 1)) call.Store(1, c, dweight[c]);
    if (bias && !Omits(call.attributes(), 2)) call.Store(2, c, dbias[c]);
  }
}

void RmsNormOf(const ReferenceCall& call, const Elements& x, int first) {
  const int64_t columns = x.dim(-1);
  for (int64_t row = 0; row < Rows(x); ++row) {
    double mean_square = 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double value = x.GetFlat(row * columns + c);
      mean_square += value * value / columns;
    }
    const double rstd =
        1 / std::sqrt(mean_square + call.attributes().Double("epsilon"));
    for (int64_t c = 0; c < columns; ++c) {
      const double h = RoundTo(x.dtype(), x.GetFlat(row * columns + c) * rstd);
      call.Store(first - 1, row * columns + c, h * call.operand(first).Get(c));
    }
    call.Store(first, row, rstd);
  }
}

void RmsNorm(const ReferenceCall& call) { RmsNormOf(call, call.operand(0), 1); }

// sum = a + b, then `norm` of it.
template <void (*norm)(const ReferenceCall& call, const Elements& x, int first)>
void OfSum(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, call.operand(0).GetFlat(i) + call.operand(1).GetFlat(i));
  norm(call, call.result(0), 2);
}

void RmsNormGradient(const ReferenceCall& call) {
  const Elements& x = call.operand(1);
  const Elements& weight = call.operand(2);
  const int64_t columns = x.dim(-1);
  std::vector<double> dweight(columns);
  for (int64_t row = 0; row < Rows(x); ++row) {
    const double rstd = call.operand(3).GetFlat(row);
    const auto dy = [&](int64_t c) {
      return call.operand(0).GetFlat(row * columns + c);
    };
    const auto h = [&](int64_t c) {
      return x.GetFlat(row * columns + c) * rstd;
    };
    double sum_gh = 0;
    for (int64_t c = 0; c < columns; ++c) {
      sum_gh += dy(c) * weight.Get(c) * h(c);
      dweight[c] += dy(c) * h(c);
    }
    if (Omits(call.attributes(), 0)) continue;
    for (int64_t c = 0; c < columns; ++c) {
      call.Store(0, row * columns + c,
                 rstd * (dy(c) * weight.Get(c) - h(c) * sum_gh / columns));
    }
  }
  if (Omits(call.attributes(), 1)) return;
  for (int64_t c = 0; c < columns; ++c) call.Store(1, c, dweight[c]);
}

}  // namespace

absl::Span<const KernelDef> NormReferenceKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "layer_norm", .prepare = PrepareReference<LayerNorm>},
      {.op = "layer_norm_gradient",
       .prepare = PrepareReference<LayerNormGradient>},
      {.op = "rms_norm", .prepare = PrepareReference<RmsNorm>},
      {.op = "rms_norm_gradient", .prepare = PrepareReference<RmsNormGradient>},
      {.op = "add_layer_norm", .prepare = PrepareReference<OfSum<LayerNormOf>>},
      {.op = "add_rms_norm", .prepare = PrepareReference<OfSum<RmsNormOf>>},
  };
  return kernels;
}

}  // namespace shardgraph
