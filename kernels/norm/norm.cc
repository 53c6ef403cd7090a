#include "kernels/norm/norm.h"

#include <vector>

#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

Dims RowShape(const TensorType& x) {
  return Dims(x.shape.begin(), x.shape.end() - 1);
}

absl::Status CheckInput(const TensorType& x, absl::string_view name) {
  SG_RETURN_IF_ERROR(CheckFloating(x, name));
  return CheckRank(x, name, 1, 8);
}

absl::Status InferLayerNorm(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  const bool bias = attributes.Int("bias") != 0;
  std::vector<absl::string_view> names = {"x", "weight"};
  if (bias) names.push_back("bias");
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "epsilon"));
  const TensorType& x = operands[0];
  SG_RETURN_IF_ERROR(CheckInput(x, "x"));
  for (size_t i = 1; i < operands.size(); ++i) {
    SG_RETURN_IF_ERROR(CheckType(operands[i], names[i], x.dtype, {x.dim(-1)}));
  }
  results->push_back(TensorType(x.dtype, x.shape));
  results->push_back(TensorType(AccumulationDType(x.dtype), RowShape(x)));
  results->push_back(TensorType(AccumulationDType(x.dtype), RowShape(x)));
  return absl::OkStatus();
}

absl::Status InferLayerNormGradient(const Attributes& attributes,
                                    absl::Span<const TensorType> operands,
                                    std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(
      CheckCount(operands, {"dy", "x", "weight", "mean", "rstd"}));
  const TensorType& x = operands[1];
  SG_RETURN_IF_ERROR(CheckInput(x, "x"));
  SG_RETURN_IF_ERROR(CheckType(operands[0], "dy", x.dtype, x.shape));
  SG_RETURN_IF_ERROR(CheckType(operands[2], "weight", x.dtype, {x.dim(-1)}));
  const DType statistics = AccumulationDType(x.dtype);
  SG_RETURN_IF_ERROR(CheckType(operands[3], "mean", statistics, RowShape(x)));
  SG_RETURN_IF_ERROR(CheckType(operands[4], "rstd", statistics, RowShape(x)));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, x.dtype, &dtype));
  results->push_back(TensorType(x.dtype, x.shape));
  results->push_back(TensorType(dtype, {x.dim(-1)}));
  if (attributes.Int("bias") != 0) {
    results->push_back(TensorType(dtype, {x.dim(-1)}));
  }
  return absl::OkStatus();
}

absl::Status InferRmsNorm(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x", "weight"}));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "epsilon"));
  const TensorType& x = operands[0];
  SG_RETURN_IF_ERROR(CheckInput(x, "x"));
  SG_RETURN_IF_ERROR(CheckType(operands[1], "weight", x.dtype, {x.dim(-1)}));
  results->push_back(TensorType(x.dtype, x.shape));
  results->push_back(TensorType(AccumulationDType(x.dtype), RowShape(x)));
  return absl::OkStatus();
}

absl::Status InferRmsNormGradient(const Attributes& attributes,
                                  absl::Span<const TensorType> operands,
                                  std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"dy", "x", "weight", "rstd"}));
  const TensorType& x = operands[1];
  SG_RETURN_IF_ERROR(CheckInput(x, "x"));
  SG_RETURN_IF_ERROR(CheckType(operands[0], "dy", x.dtype, x.shape));
  SG_RETURN_IF_ERROR(CheckType(operands[2], "weight", x.dtype, {x.dim(-1)}));
  SG_RETURN_IF_ERROR(
      CheckType(operands[3], "rstd", AccumulationDType(x.dtype), RowShape(x)));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, x.dtype, &dtype));
  results->push_back(TensorType(x.dtype, x.shape));
  results->push_back(TensorType(dtype, {x.dim(-1)}));
  return absl::OkStatus();
}

// A norm of a + b: the sum comes first, then what the norm of it gives.
template <absl::Status (*infer)(const Attributes&, absl::Span<const TensorType>,
                                std::vector<TensorType>*)>
absl::Status InferOfSum(const Attributes& attributes,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) {
  if (operands.size() < 2)
    return absl::InvalidArgumentError("a or b is missing");
  SG_RETURN_IF_ERROR(
      CheckType(operands[1], "b", operands[0].dtype, operands[0].shape));
  const TensorType sum(operands[0].dtype, operands[0].shape);
  results->push_back(sum);
  std::vector<TensorType> rest = {sum};
  rest.insert(rest.end(), operands.begin() + 2, operands.end());
  return infer(attributes, rest, results);
}

// `kPerElement` FLOPs for each element of x (operand kX).
template <int kX, int kPerElement>
OpCost Cost(const Attributes&, absl::Span<const TensorType> operands,
            absl::Span<const TensorType> results) {
  OpCost cost = BytesMoved(operands, results);
  cost.pointwise_flops =
      static_cast<double>(kPerElement) * operands[kX].num_elements();
  return cost;
}

}  // namespace

absl::Span<const OpDef* const> NormOps() {
  static const OpDef* const ops[] = {
      new OpDef{.name = "layer_norm",
                .infer = InferLayerNorm,
                .cost = Cost<0, 8>,
                .incidental_results = 0b111,
                .strided_operands = 0b1},
      new OpDef{.name = "layer_norm_gradient",
                .infer = InferLayerNormGradient,
                .cost = Cost<1, 14>,
                .accumulates = 0b111,
                .optional_results = 0b111,
                .strided_operands = 0b11},
      new OpDef{.name = "rms_norm",
                .infer = InferRmsNorm,
                .cost = Cost<0, 4>,
                .incidental_results = 0b11,
                .strided_operands = 0b1},
      new OpDef{.name = "rms_norm_gradient",
                .infer = InferRmsNormGradient,
                .cost = Cost<1, 11>,
                .accumulates = 0b11,
                .optional_results = 0b11,
                .strided_operands = 0b11},
      new OpDef{.name = "add_layer_norm",
                .infer = InferOfSum<InferLayerNorm>,
                .cost = Cost<0, 9>,
                .incidental_results = 0b1111,
                .strided_operands = 0b11},
      new OpDef{.name = "add_rms_norm",
                .infer = InferOfSum<InferRmsNorm>,
                .cost = Cost<0, 5>,
                .incidental_results = 0b111,
                .strided_operands = 0b11},
  };
  return ops;
}

}  // namespace shardgraph
