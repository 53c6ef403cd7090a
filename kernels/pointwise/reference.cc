#include <cmath>
#include <numbers>

#include "kernels/pointwise/pointwise.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

const double kSqrt2OverPi = std::sqrt(2 / std::numbers::pi);
constexpr double kCubic = 0.044715;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }
double SiluSlope(double x) {
  const double s = Sigmoid(x);
  return s + x * s * (1 - s);
}

double GeluTanh(double x) {
  return x / 2 * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
}
double GeluTanhSlope(double x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
  return (1 + t) / 2 +
         x / 2 * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
}
double GeluErf(double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0)); }
double GeluErfSlope(double x) {
  return std::erfc(-x / std::sqrt(2.0)) / 2 +
         x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
}

double Relu(double x) { return x < 0 ? 0 : x; }

template <double (*f)(double)>
void Apply(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, f(call.operand(0).GetFlat(i)));
}

template <double (*slope)(double)>
void ApplyGradient(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i) {
    call.Store(0, i,
               call.operand(0).GetFlat(i) * slope(call.operand(1).GetFlat(i)));
  }
}

void Gelu(const ReferenceCall& call) {
  call.attributes().Int("tanh") != 0 ? Apply<GeluTanh>(call)
                                     : Apply<GeluErf>(call);
}

void GeluGradient(const ReferenceCall& call) {
  call.attributes().Int("tanh") != 0 ? ApplyGradient<GeluTanhSlope>(call)
                                     : ApplyGradient<GeluErfSlope>(call);
}

// Not by multiplication, so that an infinite dy beside x <= 0 gives 0.
void ReluGradient(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i) {
    call.Store(0, i,
               call.operand(1).GetFlat(i) > 0 ? call.operand(0).GetFlat(i) : 0);
  }
}

void Add(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, call.operand(0).GetFlat(i) + call.operand(1).GetFlat(i));
}

void Swiglu(const ReferenceCall& call) {
  const DType dtype = call.result(0).dtype();
  for (int64_t i = 0; i < call.result(0).size(); ++i) {
    call.Store(0, i,
               RoundTo(dtype, Silu(call.operand(0).GetFlat(i))) *
                   call.operand(1).GetFlat(i));
  }
}

void SwigluGradient(const ReferenceCall& call) {
  const DType dtype = call.result(0).dtype();
  for (int64_t i = 0; i < call.result(0).size(); ++i) {
    const double dy = call.operand(0).GetFlat(i);
    const double gate = call.operand(1).GetFlat(i);
    const double up = call.operand(2).GetFlat(i);
    call.Store(0, i, dy * up * SiluSlope(gate));
    call.Store(1, i, dy * RoundTo(dtype, Silu(gate)));
  }
}

void Cast(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, call.operand(0).GetFlat(i));
}

void Scale(const ReferenceCall& call) {
  for (int64_t i = 0; i < call.result(0).size(); ++i)
    call.Store(0, i, call.operand(0).GetFlat(i) * call.operand(1).Get());
}

}  // namespace

absl::Span<const KernelDef> PointwiseReferenceKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "add", .prepare = PrepareReference<Add>},
      {.op = "gelu", .prepare = PrepareReference<Gelu>},
      {.op = "gelu_gradient", .prepare = PrepareReference<GeluGradient>},
      {.op = "silu", .prepare = PrepareReference<Apply<Silu>>},
      {.op = "silu_gradient",
       .prepare = PrepareReference<ApplyGradient<SiluSlope>>},
      {.op = "relu", .prepare = PrepareReference<Apply<Relu>>},
      {.op = "relu_gradient", .prepare = PrepareReference<ReluGradient>},
      {.op = "swiglu", .prepare = PrepareReference<Swiglu>},
      {.op = "swiglu_gradient", .prepare = PrepareReference<SwigluGradient>},
      {.op = "cast", .prepare = PrepareReference<Cast>},
      {.op = "scale", .prepare = PrepareReference<Scale>},
  };
  return kernels;
}

}  // namespace shardgraph
