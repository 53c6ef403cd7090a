#include "kernels/matmul/cuda.h"

#include <memory>
#include <string>
#include <utility>

#include "kernels/cuda/prepare.h"
#include "kernels/matmul/column_sum_cuda.h"
#include "kernels/matmul/cuda_gemm.h"
#include "kernels/matmul/function.h"
#include "kernels/matmul/matmul.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using Prepared = std::unique_ptr<PreparedKernel>;

cuda::GemmOperand OperandOf(const Tensor& tensor, bool transpose) {
  cuda::GemmOperand operand = {tensor.data, tensor.type.strides[0], 1};
  if (transpose) std::swap(operand.row_stride, operand.column_stride);
  return operand;
}

cuda::GemmResult ResultOf(const Tensor& tensor) {
  return {tensor.data, tensor.type.strides[0]};
}

// The product of an instance of matmul or matmul_pointwise, without its result.
cuda::GemmLaunch ProductOf(const KernelContext& context) {
  const Attributes& attributes = *context.attributes;
  const Tensor &a = context.operands[0], &b = context.operands[1];
  const bool transpose_a = attributes.Int("transpose_a") != 0;
  const bool transpose_b = attributes.Int("transpose_b") != 0;
  cuda::GemmLaunch launch;
  launch.type = cuda::ElementOf(a.type);
  launch.m = a.type.dim(transpose_a ? 1 : 0);
  launch.k = a.type.dim(transpose_a ? 0 : 1);
  launch.n = b.type.dim(transpose_b ? 0 : 1);
  launch.a = OperandOf(a, transpose_a);
  launch.b = OperandOf(b, transpose_b);
  if (attributes.Int("bias") != 0) launch.bias = context.operands[2].data;
  return launch;
}

absl::StatusOr<Prepared> Gemm(const KernelContext& context,
                              const cuda::GemmLaunch& launch,
                              const cuda::GemmColumnSum* sum = nullptr) {
  SG_ASSIGN_OR_RETURN(cuda::CudaGemm gemm,
                      cuda::CudaGemm::Prepare(launch, context.workspace, sum));
  return MakeKernel([gemm = std::move(gemm)](Lane& lane) {
    return gemm.Launch(cuda::StreamOf(lane));
  });
}

absl::StatusOr<Prepared> PrepareMatmul(const KernelContext& context) {
  cuda::GemmLaunch launch = ProductOf(context);
  launch.c = ResultOf(context.results[0]);
  launch.c_type = cuda::ElementOf(context.results[0].type);
  launch.accumulate = context.attributes->Int("accumulate") != 0;
  return Gemm(context, launch);
}

absl::StatusOr<Prepared> PrepareMatmulPointwise(const KernelContext& context) {
  cuda::GemmLaunch launch = ProductOf(context);
  if (context.results.size() == 2) launch.c = ResultOf(context.results[0]);
  launch.c_type = launch.type;
  launch.has_function = true;
  launch.function = PointwiseFunctionOf(*context.attributes);
  const size_t factors = launch.bias == nullptr ? 2 : 3;
  if (context.operands.size() > factors)
    launch.x = OperandOf(context.operands.back(), false);
  launch.z = ResultOf(context.results.back());
  return Gemm(context, launch);
}

int64_t SumWorkspace(const Attributes&, absl::Span<const TensorType> operands,
                     absl::Span<const TensorType>) {
  return cuda::ColumnSumWorkspace(operands[0].dim(0), operands[0].dim(1));
}

cuda::ColumnSumLaunch ColumnSumOf(const Tensor& x, const Tensor& y,
                                  bool accumulate, const Tensor& workspace) {
  cuda::ColumnSumLaunch launch;
  launch.x = x.data;
  launch.x_type = cuda::ElementOf(x.type);
  launch.row_stride = x.type.strides[0];
  launch.rows = x.type.dim(0);
  launch.columns = x.type.dim(1);
  launch.y = y.data;
  launch.y_type = cuda::ElementOf(y.type);
  launch.accumulate = accumulate;
  launch.workspace = workspace.data;
  return launch;
}

absl::StatusOr<Prepared> PrepareColumnSum(const KernelContext& context) {
  const cuda::ColumnSumLaunch launch = ColumnSumOf(
      context.operands[0], context.results[0],
      context.attributes->Int("accumulate") != 0, context.workspace);
  return cuda::MakeCudaKernel("column_sum", [launch](cudaStream_t stream) {
    return LaunchColumnSum(launch, stream);
  });
}

int64_t MatmulColumnSumWorkspace(const Attributes& attributes,
                                 absl::Span<const TensorType> operands,
                                 absl::Span<const TensorType> results) {
  return SumWorkspace(attributes, operands.subspan(SummedOperand(attributes)),
                      results);
}

absl::StatusOr<Prepared> PrepareMatmulColumnSum(const KernelContext& context) {
  const int64_t accumulate = context.attributes->Int("accumulate");
  cuda::GemmLaunch launch = ProductOf(context);
  launch.c = ResultOf(context.results[0]);
  launch.c_type = cuda::ElementOf(context.results[0].type);
  launch.accumulate = (accumulate & 1) != 0;
  const int summed = SummedOperand(*context.attributes);
  const cuda::GemmColumnSum sum = {
      .of_b = summed == 1,
      .launch = ColumnSumOf(context.operands[summed], context.results[1],
                            (accumulate & 2) != 0, context.workspace)};
  return Gemm(context, launch, &sum);
}

}  // namespace

absl::Span<const KernelDef> MatmulCudaKernels() {
  using cuda::SupportsF32AndBf16;
  static constexpr KernelDef kernels[] = {
      {.op = "matmul",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareMatmul},
      {.op = "matmul_pointwise",
       .supports = SupportsF32AndBf16,
       .prepare = PrepareMatmulPointwise},
      {.op = "matmul_column_sum",
       .supports = SupportsF32AndBf16,
       .workspace = MatmulColumnSumWorkspace,
       .prepare = PrepareMatmulColumnSum},
      {.op = "column_sum",
       .supports = SupportsF32AndBf16,
       .workspace = SumWorkspace,
       .prepare = PrepareColumnSum},
  };
  return kernels;
}

}  // namespace shardgraph
