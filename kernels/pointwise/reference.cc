#include "kernels/pointwise/pointwise.h"
#include "kernels/pointwise/scalar.h"
#include "kernels/reference/reference_kernel.h"

namespace shardgraph {
namespace {

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
  call.attributes().Int("tanh") != 0 ? Apply<scalar::GeluTanh>(call)
                                     : Apply<scalar::GeluErf>(call);
}

void GeluGradient(const ReferenceCall& call) {
  call.attributes().Int("tanh") != 0
      ? ApplyGradient<scalar::GeluTanhSlope>(call)
      : ApplyGradient<scalar::GeluErfSlope>(call);
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
               RoundTo(dtype, scalar::Silu(call.operand(0).GetFlat(i))) *
                   call.operand(1).GetFlat(i));
  }
}

void SwigluGradient(const ReferenceCall& call) {
  const DType dtype = call.result(0).dtype();
  for (int64_t i = 0; i < call.result(0).size(); ++i) {
    const double dy = call.operand(0).GetFlat(i);
    const double gate = call.operand(1).GetFlat(i);
    const double up = call.operand(2).GetFlat(i);
    call.Store(0, i, dy * up * scalar::SiluSlope(gate));
    call.Store(1, i, dy * RoundTo(dtype, scalar::Silu(gate)));
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
      {.op = "silu", .prepare = PrepareReference<Apply<scalar::Silu>>},
      {.op = "silu_gradient",
       .prepare = PrepareReference<ApplyGradient<scalar::SiluSlope>>},
      {.op = "relu", .prepare = PrepareReference<Apply<scalar::Relu>>},
      {.op = "relu_gradient", .prepare = PrepareReference<ReluGradient>},
      {.op = "swiglu", .prepare = PrepareReference<Swiglu>},
      {.op = "swiglu_gradient", .prepare = PrepareReference<SwigluGradient>},
      {.op = "cast", .prepare = PrepareReference<Cast>},
      {.op = "scale", .prepare = PrepareReference<Scale>},
  };
  return kernels;
}

}  // namespace shardgraph
