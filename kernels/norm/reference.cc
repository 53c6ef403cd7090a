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

void LayerNorm(const ReferenceCall& call) {
  const Elements& x = call.operand(0);
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
      call.Store(
          0, row * columns + c,
          h * call.operand(1).Get(c) + (bias ? call.operand(2).Get(c) : 0.0));
    }
    call.Store(1, row, mean);
    call.Store(2, row, rstd);
  }
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
    for (int64_t c = 0; c < columns; ++c) {
      call.Store(0, row * columns + c,
                 rstd * (dy(c) * weight.Get(c) - sum_g / columns -
                         h(c) * sum_gh / columns));
    }
  }
  for (int64_t c = 0; c < columns; ++c) {
    call.Store(1, c, dweight[c]);
    if (call.attributes().Int("bias") != 0) call.Store(2, c, dbias[c]);
  }
}

void RmsNorm(const ReferenceCall& call) {
  const Elements& x = call.operand(0);
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
      call.Store(0, row * columns + c, h * call.operand(1).Get(c));
    }
    call.Store(1, row, rstd);
  }
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
    for (int64_t c = 0; c < columns; ++c) {
      call.Store(0, row * columns + c,
                 rstd * (dy(c) * weight.Get(c) - h(c) * sum_gh / columns));
    }
  }
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
  };
  return kernels;
}

}  // namespace shardgraph
