#include "kernels/pointwise/cuda.h"

#include <array>
#include <memory>

#include "kernels/cuda/prepare.h"
#include "kernels/pointwise/pointwise.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;
using cuda::PointwiseLaunch;

Prepared Elementwise(const KernelContext& context, Pointwise function) {
  PointwiseLaunch launch;
  launch.function = function;
  launch.type = cuda::ElementOf(context.operands[0].type);
  launch.to_type = cuda::ElementOf(context.results[0].type);
  const int inputs = cuda::PointwiseInputs(function);
  const int results = cuda::PointwiseResults(function);
  // What is not there takes the place of the first operand, to no effect.
  std::array<const TensorType*, cuda::kPointwiseTensors> types;
  types.fill(&context.operands[0].type);
  launch.vector = true;
  for (int i = 0; i < inputs; ++i) {
    const Tensor& tensor = context.operands[i];
    types[i] = &tensor.type;
    launch.in[i] = tensor.data;
    launch.vector &= cuda::IsAligned(tensor.data);
  }
  for (int r = 0; r < results; ++r) {
    const Tensor& tensor = context.results[r];
    types[3 + r] = &tensor.type;
    launch.out[r] = tensor.data;
    launch.vector &= cuda::IsAligned(tensor.data);
  }
  if (function == Pointwise::kScale)
    launch.factor = context.operands[1].as<float>();
  launch.shape = cuda::FoldElements<cuda::kPointwiseTensors>(types);
  // Groups are of as many elements as fill 16 bytes of the narrower type.
  const bool half =
      launch.type != ElementType::kF32 || launch.to_type != ElementType::kF32;
  launch.vector &= cuda::StepsBy(launch.shape.rows, half ? 8 : 4);
  return cuda::MakeCudaKernel(context.op->name, [launch](cudaStream_t stream) {
    return LaunchPointwise(launch, stream);
  });
}

template <Pointwise kFunction>
absl::StatusOr<Prepared> Prepare(const KernelContext& context) {
  return Elementwise(context, kFunction);
}

bool IsTanh(const KernelContext& context) {
  return context.attributes->Int("tanh") != 0;
}

absl::StatusOr<Prepared> PrepareGelu(const KernelContext& context) {
  return Elementwise(
      context, IsTanh(context) ? Pointwise::kGeluTanh : Pointwise::kGeluErf);
}

absl::StatusOr<Prepared> PrepareGeluGradient(const KernelContext& context) {
  return Elementwise(context, IsTanh(context) ? Pointwise::kGeluTanhGradient
                                              : Pointwise::kGeluErfGradient);
}

absl::Status SupportsCast(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType> results) {
  const DType from = operands[0].dtype, to = results[0].dtype;
  const auto half_or_float = [](DType dtype) {
    return dtype == DType::kF16 || dtype == DType::kF32;
  };
  if (half_or_float(from) && half_or_float(to)) return absl::OkStatus();
  return cuda::SupportsF32AndBf16(attributes, operands, results);
}

absl::StatusOr<Prepared> PrepareCast(const KernelContext& context) {
  return Elementwise(context, context.attributes->Int("accumulate") != 0
                                  ? Pointwise::kCastAdd
                                  : Pointwise::kCast);
}

}  // namespace

absl::Span<const KernelDef> PointwiseCudaKernels() {
  using cuda::SupportsF32AndBf16;
  static constexpr KernelDef kernels[] = {
      {.op = "add",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kAdd>},
      {.op = "gelu", .supports = SupportsF32AndBf16, .prepare = PrepareGelu},
      {.op = "gelu_gradient",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareGeluGradient},
      {.op = "silu",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kSilu>},
      {.op = "silu_gradient",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kSiluGradient>},
      {.op = "relu",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kRelu>},
      {.op = "relu_gradient",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kReluGradient>},
      {.op = "swiglu",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kSwiglu>},
      {.op = "swiglu_gradient",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kSwigluGradient>},
      {.op = "cast", .supports = SupportsCast, .prepare = PrepareCast},
      {.op = "scale",
       .supports = SupportsF32AndBf16,
       .prepare = Prepare<Pointwise::kScale>},
  };
  return kernels;
}

}  // namespace shardgraph
