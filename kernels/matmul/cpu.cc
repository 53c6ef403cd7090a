#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
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

// Columns summed by one task, and rows summed before a partial sum is added to
// the total.
constexpr int64_t kSumColumns = 64;
constexpr int64_t kSumRows = 64;

// y[0, columns) (+)= sums over the rows of x.
template <typename X, typename Y>
void SumColumns(const X* x, int64_t row_stride, int64_t rows, int64_t columns,
                bool accumulate, Y* y) {
  float total[kSumColumns] = {};
  for (int64_t first = 0; first < rows; first += kSumRows) {
    float partial[kSumColumns] = {};
    const int64_t last = std::min(first + kSumRows, rows);
    for (int64_t n = first; n < last; ++n) {
      const X* row = x + n * row_stride;
      for (int64_t c = 0; c < columns; ++c)
        partial[c] += static_cast<float>(row[c]);
    }
    for (int64_t c = 0; c < kSumColumns; ++c) total[c] += partial[c];
  }
  for (int64_t c = 0; c < columns; ++c)
    y[c] = Y(accumulate ? static_cast<float>(y[c]) + total[c] : total[c]);
}

template <typename X, typename Y>
std::unique_ptr<PreparedKernel> MakeColumnSum(const KernelContext& context) {
  const Tensor x = context.operands[0];
  Y* const y = context.results[0].as<Y>();
  const bool accumulate = context.attributes->Int("accumulate") != 0;
  return MakeKernel([=](Lane& lane) {
    const int64_t columns = x.type.dim(1);
    const int64_t tasks = (columns + kSumColumns - 1) / kSumColumns;
    lane.pool->ParallelFor(tasks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = i * kSumColumns;
        SumColumns(x.as<X>() + c, x.type.strides[0], x.type.dim(0),
                   std::min(kSumColumns, columns - c), accumulate, y + c);
      }
    });
  });
}

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareColumnSum(
    const KernelContext& context) {
  const bool x_bf16 = context.operands[0].type.dtype == DType::kBF16;
  const bool y_bf16 = context.results[0].type.dtype == DType::kBF16;
  if (x_bf16) {
    return y_bf16 ? MakeColumnSum<BFloat16, BFloat16>(context)
                  : MakeColumnSum<BFloat16, float>(context);
  }
  return y_bf16 ? MakeColumnSum<float, BFloat16>(context)
                : MakeColumnSum<float, float>(context);
}

constexpr KernelDef kKernels[] = {
    {.op = "matmul", .supports = Supports, .prepare = PrepareMatmul},
    {.op = "column_sum", .supports = Supports, .prepare = PrepareColumnSum},
};

}  // namespace

absl::Span<const KernelDef> MatmulCpuKernels() { return kKernels; }

}  // namespace shardgraph
