#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/matmul/column_sum.h"
#include "kernels/matmul/gemm.h"
#include "kernels/matmul/matmul.h"

namespace shardgraph {
namespace {

absl::Status Supports(const Attributes&, absl::Span<const TensorType> operands,
                      absl::Span<const TensorType> results) {
  for (const TensorType& type : {operands[0], results[0]}) {
    if (!GemmTakes(type.dtype)) {
      return absl::UnimplementedError(
          absl::StrCat(DTypeName(type.dtype), "; F32 and BF16 are supported"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmul(
    const KernelContext& context) {
  const Attributes& attributes = *context.attributes;
  GemmProblem problem;
  problem.a = AsGemmMatrix(context.operands[0]);
  problem.b = AsGemmMatrix(context.operands[1]);
  const bool transpose_a = attributes.Int("transpose_a") != 0;
  problem.k = context.operands[0].type.dim(transpose_a ? 0 : 1);
  if (transpose_a) problem.a = Transposed(problem.a);
  if (attributes.Int("transpose_b") != 0) problem.b = Transposed(problem.b);
  if (attributes.Int("bias") != 0) {
    problem.bias = context.operands[2].data;
    problem.bias_bf16 = context.operands[2].type.dtype == DType::kBF16;
  }
  SetGemmResult(context.results[0], &problem);
  problem.m = context.results[0].type.dim(0);
  problem.n = context.results[0].type.dim(1);
  problem.accumulate = attributes.Int("accumulate") != 0;
  return MakeKernel([problem](Lane& lane) { RunGemm(problem, lane.pool); });
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareColumnSum(
    const KernelContext& context) {
  const auto element_type = [](const Tensor& tensor) {
    return tensor.type.dtype == DType::kBF16 ? ElementType::kBF16
                                             : ElementType::kF32;
  };
  const Tensor& x = context.operands[0];
  ColumnSum sum;
  sum.x = x.data;
  sum.x_type = element_type(x);
  sum.row_stride = x.type.strides[0];
  sum.rows = x.type.dim(0);
  sum.columns = x.type.dim(1);
  sum.y = context.results[0].data;
  sum.y_type = element_type(context.results[0]);
  sum.accumulate = context.attributes->Int("accumulate") != 0;
  return MakeKernel([sum](Lane& lane) { RunColumnSum(sum, *lane.pool); });
}

constexpr KernelDef kKernels[] = {
    {.op = "matmul", .supports = Supports, .prepare = PrepareMatmul},
    {.op = "column_sum", .supports = Supports, .prepare = PrepareColumnSum},
};

}  // namespace

absl::Span<const KernelDef> MatmulCpuKernels() { return kKernels; }

}  // namespace shardgraph
