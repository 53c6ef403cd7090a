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

// The product of an instance of matmul or matmul_pointwise, without its result.
GemmProblem ProductOf(const KernelContext& context) {
  const Attributes& attributes = *context.attributes;
  GemmProblem problem;
  problem.a = AsGemmMatrix(context.operands[0]);
  problem.b = AsGemmMatrix(context.operands[1]);
  const TensorType& a = context.operands[0].type;
  const TensorType& b = context.operands[1].type;
  const bool transpose_a = attributes.Int("transpose_a") != 0;
  const bool transpose_b = attributes.Int("transpose_b") != 0;
  problem.m = a.dim(transpose_a ? 1 : 0);
  problem.k = a.dim(transpose_a ? 0 : 1);
  problem.n = b.dim(transpose_b ? 0 : 1);
  if (transpose_a) problem.a = Transposed(problem.a);
  if (transpose_b) problem.b = Transposed(problem.b);
  if (attributes.Int("bias") != 0) {
    problem.bias = context.operands[2].data;
    problem.bias_bf16 = context.operands[2].type.dtype == DType::kBF16;
  }
  return problem;
}

int64_t Workspace(const Attributes& attributes,
                  absl::Span<const TensorType> operands,
                  absl::Span<const TensorType>) {
  const bool transpose_a = attributes.Int("transpose_a") != 0;
  const bool transpose_b = attributes.Int("transpose_b") != 0;
  return GemmScratchBytes(operands[0].dim(transpose_a ? 1 : 0),
                          operands[1].dim(transpose_b ? 0 : 1),
                          operands[0].dim(transpose_a ? 0 : 1));
}

GemmOptions OptionsOf(const KernelContext& context) {
  GemmOptions options;
  options.scratch = context.workspace.data;
  options.scratch_bytes = context.workspace.type.num_elements();
  return options;
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmul(
    const KernelContext& context) {
  GemmProblem problem = ProductOf(context);
  SetGemmResult(context.results[0], &problem);
  problem.accumulate = context.attributes->Int("accumulate") != 0;
  return MakeKernel([problem, options = OptionsOf(context)](Lane& lane) {
    RunGemm(problem, lane.pool, options);
  });
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
    {.op = "matmul",
     .supports = Supports,
     .workspace = Workspace,
     .prepare = PrepareMatmul},
    {.op = "column_sum", .supports = Supports, .prepare = PrepareColumnSum},
};

}  // namespace

absl::Span<const KernelDef> MatmulCpuKernels() { return kKernels; }

}  // namespace shardgraph
