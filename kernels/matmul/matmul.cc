#include "kernels/matmul/matmul.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// What may follow a product; FLOPs per element of z, as of the ops themselves.
struct PointwiseFunction {
  absl::string_view name;
  bool takes_x;
  double flops;
};

constexpr PointwiseFunction kPointwiseFunctions[] = {
    {"gelu", false, 20},   {"gelu_gradient", true, 30},
    {"silu", false, 15},   {"silu_gradient", true, 20},
    {"relu", false, 1},    {"relu_gradient", true, 1},
    {"swiglu", false, 16}, {"add", true, 1},
};

const PointwiseFunction* FindPointwiseFunction(absl::string_view name) {
  for (const PointwiseFunction& function : kPointwiseFunctions) {
    if (function.name == name) return &function;
  }
  return nullptr;
}

// Pushes the type of a b (+ bias), in the dtype of a. `more` are the names of
// operands behind those, of the same dtype, whose shape is not checked.
absl::Status InferProduct(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          std::vector<absl::string_view> more,
                          std::vector<TensorType>* results) {
  const bool bias = attributes.Int("bias") != 0;
  std::vector<absl::string_view> names = {"a", "b"};
  if (bias) names.push_back("bias");
  names.insert(names.end(), more.begin(), more.end());
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  for (size_t i = 0; i < names.size(); ++i) {
    SG_RETURN_IF_ERROR(CheckFloating(operands[i], names[i]));
    SG_RETURN_IF_ERROR(CheckDType(operands[i], names[i], {operands[0].dtype}));
    const int rank = bias && i == 2 ? 1 : 2;
    SG_RETURN_IF_ERROR(CheckRank(operands[i], names[i], rank, rank));
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
  if (bias) SG_RETURN_IF_ERROR(CheckShape(operands[2], "bias", {n}));
  results->push_back(TensorType(operands[0].dtype, {m, n}));
  return absl::OkStatus();
}

absl::Status InferMatmul(const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(InferProduct(attributes, operands, {}, results));
  return ResultDType(attributes, operands[0].dtype, &results->back().dtype);
}

OpCost CostOfMatmul(const Attributes& attributes,
                    absl::Span<const TensorType> operands,
                    absl::Span<const TensorType> results) {
  OpCost cost = CostOfMemory(operands, results);
  const bool transpose_a = attributes.Int("transpose_a") != 0;
  const bool transpose_b = attributes.Int("transpose_b") != 0;
  const double k = operands[0].dim(transpose_a ? 0 : 1);
  cost.matmul_flops = 2 * k * operands[0].dim(transpose_a ? 1 : 0) *
                      operands[1].dim(transpose_b ? 0 : 1);
  return cost;
}

absl::Status InferMatmulPointwise(const Attributes& attributes,
                                  absl::Span<const TensorType> operands,
                                  std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "function"));
  const std::string function = attributes.String("function");
  const PointwiseFunction* const known = FindPointwiseFunction(function);
  if (known == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute function is \"", function, "\"; one of ",
        absl::StrJoin(kPointwiseFunctions, ", ",
                      [](std::string* out, const PointwiseFunction& f) {
                        absl::StrAppend(out, f.name);
                      })));
  }
  std::vector<absl::string_view> more;
  if (known->takes_x) more.push_back("x");
  SG_RETURN_IF_ERROR(InferProduct(attributes, operands, more, results));
  const TensorType y = results->back();
  if (known->takes_x)
    SG_RETURN_IF_ERROR(CheckShape(operands.back(), "x", y.shape));
  TensorType z = y;
  if (function == "swiglu") {
    if (y.dim(1) % 2 != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "y is ", y.ToString(), "; swiglu needs an even number of columns"));
    }
    z = TensorType(y.dtype, {y.dim(0), y.dim(1) / 2});
  }
  if (attributes.Int("keep", 1) == 0) results->clear();
  results->push_back(z);
  return absl::OkStatus();
}

OpCost CostOfMatmulPointwise(const Attributes& attributes,
                             absl::Span<const TensorType> operands,
                             absl::Span<const TensorType> results) {
  OpCost cost = CostOfMatmul(attributes, operands, results);
  cost.pointwise_flops =
      FindPointwiseFunction(attributes.String("function"))->flops *
      results.back().num_elements();
  return cost;
}

absl::Status InferMatmulColumnSum(const Attributes& attributes,
                                  absl::Span<const TensorType> operands,
                                  std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "sum"));
  const std::string sum = attributes.String("sum");
  if (sum != "a" && sum != "b") {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute sum is \"", sum, "\"; \"a\" or \"b\""));
  }
  if (attributes.Int("transpose_a") == 0 ||
      attributes.Int("transpose_b") != 0 || attributes.Int("bias") != 0) {
    return absl::InvalidArgumentError(
        "the sums are over the rows of a and b: transpose_a must be 1, "
        "transpose_b and bias 0");
  }
  SG_RETURN_IF_ERROR(InferMatmul(attributes, operands, results));
  const TensorType y = results->back();
  results->push_back(TensorType(y.dtype, {y.dim(SummedOperand(attributes))}));
  return absl::OkStatus();
}

OpCost CostOfMatmulColumnSum(const Attributes& attributes,
                             absl::Span<const TensorType> operands,
                             absl::Span<const TensorType> results) {
  OpCost cost = CostOfMatmul(attributes, operands, results);
  cost.pointwise_flops = operands[SummedOperand(attributes)].num_elements();
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

int SummedOperand(const Attributes& attributes) {
  return attributes.String("sum") == "b" ? 1 : 0;
}

absl::Span<const OpDef* const> MatmulOps() {
  static const OpDef matmul = {.name = "matmul",
                               .infer = InferMatmul,
                               .cost = CostOfMatmul,
                               .accumulates = 0b1,
                               .strided_operands = 0b1111,
                               .strided_results = 0b1};
  static const OpDef matmul_pointwise = {.name = "matmul_pointwise",
                                         .infer = InferMatmulPointwise,
                                         .cost = CostOfMatmulPointwise,
                                         .incidental_results = 0b01,
                                         .strided_operands = 0b1111,
                                         .strided_results = 0b11};
  static const OpDef matmul_column_sum = {.name = "matmul_column_sum",
                                          .infer = InferMatmulColumnSum,
                                          .cost = CostOfMatmulColumnSum,
                                          .accumulates = 0b11,
                                          .strided_operands = 0b111,
                                          .strided_results = 0b1};
  static const OpDef column_sum = {.name = "column_sum",
                                   .infer = InferColumnSum,
                                   .cost = CostOfColumnSum,
                                   .accumulates = 0b1,
                                   .strided_operands = 0b1};
  static const OpDef* const ops[] = {&matmul, &column_sum, &matmul_pointwise,
                                     &matmul_column_sum};
  return ops;
}

}  // namespace shardgraph
