#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/target.h"
#include "kernels/matmul/column_sum.h"
#include "kernels/matmul/function.h"
#include "kernels/matmul/gemm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/pointwise/pointwise_run.h"

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

// The function is applied to each tile of y while it is in the cache.
class MatmulPointwise {
 public:
  explicit MatmulPointwise(const KernelContext& context)
      : problem_(ProductOf(context)),
        options_(OptionsOf(context)),
        keep_(context.results.size() == 2),
        run_pointwise_(SG_BEST_CPU_TARGET(RunPointwise)),
        x_(context.operands.back()),
        z_(context.results.back()) {
    run_.function = PointwiseFunctionOf(*context.attributes);
    problem_.c_bf16 = z_.type.dtype == DType::kBF16;
    run_.type = problem_.c_bf16 ? ElementType::kBF16 : ElementType::kF32;
    if (keep_) SetGemmResult(context.results[0], &problem_);
    const size_t factors = context.attributes->Int("bias") != 0 ? 3 : 2;
    takes_x_ = context.operands.size() > factors;
  }

  void operator()(Lane& lane) const {
    const auto apply = [this](const GemmTile& y, const GemmTile& right) {
      PointwiseRun run = run_;
      run.n = y.columns;
      for (int64_t i = 0; i < y.rows; ++i) {
        run.in[0] = Element(y.c, i * y.c_row_stride);
        if (run.function == Pointwise::kSwiglu) {
          run.in[1] = Element(right.c, i * right.c_row_stride);
        } else if (takes_x_) {
          run.in[1] = At(x_, y.m + i, y.n);
        }
        run.out[0] = At(z_, y.m + i, y.n);
        run_pointwise_(run);
      }
    };
    RunGemm(problem_, lane.pool, options_,
            {.discard_c = !keep_,
             .pairs = run_.function == Pointwise::kSwiglu,
             .apply = apply});
  }

 private:
  void* Element(void* data, int64_t index) const {
    return static_cast<char*>(data) + index * SizeOfElement(run_.type);
  }
  void* At(const Tensor& tensor, int64_t row, int64_t column) const {
    return Element(tensor.data, row * tensor.type.strides[0] + column);
  }

  GemmProblem problem_;
  GemmOptions options_;
  bool keep_;
  bool takes_x_ = false;
  PointwiseRunFunction* run_pointwise_;
  PointwiseRun run_;  // but for its addresses
  Tensor x_;
  Tensor z_;
};

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmulPointwise(
    const KernelContext& context) {
  return MakeKernel(MatmulPointwise(context));
}

ColumnSum ColumnSumOf(const Tensor& x, const Tensor& y, bool accumulate) {
  const auto element_type = [](const Tensor& tensor) {
    return tensor.type.dtype == DType::kBF16 ? ElementType::kBF16
                                             : ElementType::kF32;
  };
  ColumnSum sum;
  sum.x = x.data;
  sum.x_type = element_type(x);
  sum.row_stride = x.type.strides[0];
  sum.rows = x.type.dim(0);
  sum.columns = x.type.dim(1);
  sum.y = y.data;
  sum.y_type = element_type(y);
  sum.accumulate = accumulate;
  return sum;
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareColumnSum(
    const KernelContext& context) {
  const ColumnSum sum = ColumnSumOf(context.operands[0], context.results[0],
                                    context.attributes->Int("accumulate") != 0);
  return MakeKernel([sum](Lane& lane) { RunColumnSum(sum, *lane.pool); });
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareMatmulColumnSum(
    const KernelContext& context) {
  const int64_t accumulate = context.attributes->Int("accumulate");
  GemmProblem problem = ProductOf(context);
  SetGemmResult(context.results[0], &problem);
  problem.accumulate = (accumulate & 1) != 0;
  const ColumnSum sum =
      ColumnSumOf(context.operands[SummedOperand(*context.attributes)],
                  context.results[1], (accumulate & 2) != 0);
  return MakeKernel([problem, sum, options = OptionsOf(context)](Lane& lane) {
    RunGemm(problem, lane.pool, options);
    RunColumnSum(sum, *lane.pool);
  });
}

constexpr KernelDef kKernels[] = {
    {.op = "matmul",
     .supports = Supports,
     .workspace = Workspace,
     .prepare = PrepareMatmul},
    {.op = "matmul_pointwise",
     .supports = Supports,
     .workspace = Workspace,
     .prepare = PrepareMatmulPointwise},
    {.op = "matmul_column_sum",
     .supports = Supports,
     .workspace = Workspace,
     .prepare = PrepareMatmulColumnSum},
    {.op = "column_sum", .supports = Supports, .prepare = PrepareColumnSum},
};

}  // namespace

absl::Span<const KernelDef> MatmulCpuKernels() { return kKernels; }

}  // namespace shardgraph
