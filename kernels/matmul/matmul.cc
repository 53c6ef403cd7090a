#include "kernels/matmul/matmul.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status InferMatmul(const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         std::vector<TensorType>* results) {
  std::vector<absl::string_view> names = {"a", "b"};
  if (attributes.Int("bias") != 0) names.push_back("bias");
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  for (size_t i = 0; i < names.size(); ++i) {
    SG_RETURN_IF_ERROR(CheckFloating(operands[i], names[i]));
    SG_RETURN_IF_ERROR(CheckDType(operands[i], names[i], {operands[0].dtype}));
    SG_RETURN_IF_ERROR(
        CheckRank(operands[i], names[i], i < 2 ? 2 : 1, i < 2 ? 2 : 1));
  }
  const bool transpose_a = attributes.Int("transpose_a") != 0;
  const bool transpose_b = attributes.Int("transpose_b") != 0;
  const int64_t m = operands[0].dim(transpose_a ? 1 : 0);
  const int64_t k = operands[0].dim(transpose_a ? 0 : 1);
  const int64_t n = operands[1].dim(transpose_b ? 0 : 1);
  const int64_t b_k = operands[1].dim(transpose_b ? 1 : 0);
  if (k != b_k) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a is ", operands[0].ToString(), transpose_a ? " transposed" : "",
        " and b is ", operands[1].ToString(), transpose_b ? " transposed" : "",
        "; the inner sizes ", k, " and ", b_k, " must be equal"));
  }
  if (names.size() == 3)
    SG_RETURN_IF_ERROR(CheckShape(operands[2], "bias", {n}));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, operands[0].dtype, &dtype));
  results->push_back(TensorType(dtype, {m, n}));
  return absl::OkStatus();
}

OpCost CostOfMatmul(const Attributes& attributes,
                    absl::Span<const TensorType> operands,
                    absl::Span<const TensorType> results) {
  OpCost cost = CostOfMemory(operands, results);
  const int64_t k = operands[0].dim(attributes.Int("transpose_a") != 0 ? 0 : 1);
  cost.matmul_flops = 2.0 * results[0].num_elements() * k;
  return cost;
}

absl::Status InferColumnSum(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x"}));
  SG_RETURN_IF_ERROR(CheckFloating(operands[0], "x"));
  SG_RETURN_IF_ERROR(CheckRank(operands[0], "x", 2, 2));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, operands[0].dtype, &dtype));
  results->push_back(TensorType(dtype, {operands[0].dim(1)}));
  return absl::OkStatus();
}

OpCost CostOfColumnSum(const Attributes&, absl::Span<const TensorType> operands,
                       absl::Span<const TensorType> results) {
  OpCost cost = CostOfMemory(operands, results);
  cost.pointwise_flops = operands[0].num_elements();
  return cost;
}

}  // namespace

absl::Span<const OpDef* const> MatmulOps() {
  static const OpDef matmul = {.name = "matmul",
                               .infer = InferMatmul,
                               .cost = CostOfMatmul,
                               .accumulates = 0b1,
                               .strided_operands = 0b1111,
                               .strided_results = 0b1};
  static const OpDef column_sum = {.name = "column_sum",
                                   .infer = InferColumnSum,
                                   .cost = CostOfColumnSum,
                                   .accumulates = 0b1,
                                   .strided_operands = 0b1};
  static const OpDef* const ops[] = {&matmul, &column_sum};
  return ops;
}

}  // namespace shardgraph
