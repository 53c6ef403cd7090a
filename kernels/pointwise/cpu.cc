#include <memory>

#include "kernels/cpu/loops.h"
#include "kernels/cpu/target.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/pointwise/pointwise_run.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

// All tensors have one shape; `run` says what to do, but not with which
// elements.
template <size_t kInputs, size_t kOutputs>
Prepared Elementwise(const KernelContext& context, PointwiseRun run,
                     const float* factor = nullptr) {
  constexpr size_t kTensors = kInputs + kOutputs;
  std::array<const TensorType*, kTensors> types;
  std::array<char*, kTensors> data;
  std::array<int64_t, kTensors> sizes;
  for (size_t i = 0; i < kTensors; ++i) {
    const Tensor& tensor =
        i < kInputs ? context.operands[i] : context.results[i - kInputs];
    types[i] = &tensor.type;
    data[i] = tensor.as<char>();
    sizes[i] = SizeOf(tensor.type.dtype);
  }
  run.type = ElementTypeOf(types[0]->dtype);
  run.to_type = ElementTypeOf(types[kInputs]->dtype);
  const bool f16 =
      run.type == ElementType::kF16 || run.to_type == ElementType::kF16;
  PointwiseRunFunction* const function = ForTarget(
      f16 ? CpuTarget::kBaseline : BestCpuTarget(), &baseline::RunPointwise,
      &avx2::RunPointwise, &avx512::RunPointwise);
  const ElementwiseLoop<kTensors> loop(types);
  return MakeKernel([=](Lane& lane) {
    PointwiseRun whole = run;
    if (factor != nullptr) whole.factor = *factor;
    loop.Run(*lane.pool, [&](const auto& offsets, int64_t count) {
      PointwiseRun part = whole;
      part.n = count;
      for (size_t i = 0; i < kInputs; ++i)
        part.in[i] = data[i] + offsets[i] * sizes[i];
      for (size_t i = 0; i < kOutputs; ++i)
        part.out[i] =
            data[kInputs + i] + offsets[kInputs + i] * sizes[kInputs + i];
      function(part);
    });
  });
}

template <Pointwise kFunction, size_t kInputs, size_t kOutputs = 1>
absl::StatusOr<Prepared> Prepare(const KernelContext& context) {
  return Elementwise<kInputs, kOutputs>(context, {.function = kFunction});
}

bool IsTanh(const KernelContext& context) {
  return context.attributes->Int("tanh") != 0;
}

absl::StatusOr<Prepared> PrepareGelu(const KernelContext& context) {
  return IsTanh(context) ? Prepare<Pointwise::kGeluTanh, 1>(context)
                         : Prepare<Pointwise::kGeluErf, 1>(context);
}

absl::StatusOr<Prepared> PrepareGeluGradient(const KernelContext& context) {
  return IsTanh(context) ? Prepare<Pointwise::kGeluTanhGradient, 2>(context)
                         : Prepare<Pointwise::kGeluErfGradient, 2>(context);
}

absl::StatusOr<Prepared> PrepareCast(const KernelContext& context) {
  return context.attributes->Int("accumulate") != 0
             ? Prepare<Pointwise::kCastAdd, 1>(context)
             : Prepare<Pointwise::kCast, 1>(context);
}

absl::StatusOr<Prepared> PrepareScale(const KernelContext& context) {
  return Elementwise<1, 1>(context, {.function = Pointwise::kScale},
                           context.operands[1].as<float>());
}

}  // namespace

absl::Span<const KernelDef> PointwiseCpuKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "add",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kAdd, 2>},
      {.op = "gelu", .supports = SupportsNoF64, .prepare = PrepareGelu},
      {.op = "gelu_gradient",
       .supports = SupportsNoF64,
       .prepare = PrepareGeluGradient},
      {.op = "silu",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kSilu, 1>},
      {.op = "silu_gradient",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kSiluGradient, 2>},
      {.op = "relu",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kRelu, 1>},
      {.op = "relu_gradient",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kReluGradient, 2>},
      {.op = "swiglu",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kSwiglu, 2>},
      {.op = "swiglu_gradient",
       .supports = SupportsNoF64,
       .prepare = Prepare<Pointwise::kSwigluGradient, 3, 2>},
      {.op = "cast", .supports = SupportsNoF64, .prepare = PrepareCast},
      {.op = "scale", .supports = SupportsNoF64, .prepare = PrepareScale},
  };
  return kernels;
}

}  // namespace shardgraph
