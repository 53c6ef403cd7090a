#include "kernels/loss/loss.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status CheckHead(const Attributes& attributes,
                       absl::Span<const TensorType> operands) {
  const TensorType& x = operands[0];
  SG_RETURN_IF_ERROR(CheckFloating(x, "x"));
  SG_RETURN_IF_ERROR(CheckRank(x, "x", 2, 2));
  SG_RETURN_IF_ERROR(
      CheckType(operands[1], "weight", x.dtype, {kAnySize, x.dim(1)}));
  SG_RETURN_IF_ERROR(
      CheckType(operands[2], "targets", DType::kI32, {x.dim(0)}));
  if (attributes.Int("chunk_rows") < 1) {
    return absl::InvalidArgumentError(absl::StrCat("attribute chunk_rows is ",
                                                   attributes.Int("chunk_rows"),
                                                   ", must be at least 1"));
  }
  const double smoothing = attributes.Double("label_smoothing");
  if (!(smoothing >= 0 && smoothing < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute label_smoothing is ", smoothing, ", must be in [0, 1)"));
  }
  if (!(attributes.Double("z_loss") >= 0)) {
    return absl::InvalidArgumentError(absl::StrCat("attribute z_loss is ",
                                                   attributes.Double("z_loss"),
                                                   ", must be at least 0"));
  }
  return absl::OkStatus();
}

absl::Status InferHead(const Attributes& attributes,
                       absl::Span<const TensorType> operands,
                       std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x", "weight", "targets"}));
  SG_RETURN_IF_ERROR(CheckHead(attributes, operands));
  results->push_back(TensorType(DType::kF64, {2}));
  return absl::OkStatus();
}

absl::Status InferHeadGradient(const Attributes& attributes,
                               absl::Span<const TensorType> operands,
                               std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(
      operands, {"x", "weight", "targets", "loss_scale", "nominal_tokens"}));
  SG_RETURN_IF_ERROR(CheckHead(attributes, operands));
  SG_RETURN_IF_ERROR(CheckScalar(operands[3], "loss_scale", DType::kF32));
  SG_RETURN_IF_ERROR(CheckScalar(operands[4], "nominal_tokens", DType::kF64));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, operands[1].dtype, &dtype));
  results->push_back(TensorType(DType::kF64, {2}));
  results->push_back(TensorType(operands[0].dtype, operands[0].shape));
  results->push_back(TensorType(dtype, operands[1].shape));
  return absl::OkStatus();
}

OpCost Cost(int products, absl::Span<const TensorType> operands,
            absl::Span<const TensorType> results) {
  OpCost cost = CostOfMemory(operands, results);
  const double logits =
      static_cast<double>(operands[0].dim(0)) * operands[1].dim(0);
  cost.matmul_flops = 2.0 * products * logits * operands[0].dim(1);
  cost.pointwise_flops = 5 * logits;
  return cost;
}

OpCost CostOfHead(const Attributes&, absl::Span<const TensorType> operands,
                  absl::Span<const TensorType> results) {
  return Cost(1, operands, results);
}

OpCost CostOfHeadGradient(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          absl::Span<const TensorType> results) {
  return Cost(3 - Omits(attributes, 1) - Omits(attributes, 2), operands,
              results);
}

}  // namespace

int64_t ChunkRows(const Attributes& attributes, const TensorType& x) {
  return std::min(attributes.Int("chunk_rows"), x.dim(0));
}

absl::Span<const OpDef* const> LossOps() {
  static const OpDef head = {
      .name = "cross_entropy_head", .infer = InferHead, .cost = CostOfHead};
  static const OpDef head_gradient = {.name = "cross_entropy_head_gradient",
                                      .infer = InferHeadGradient,
                                      .cost = CostOfHeadGradient,
                                      .accumulates = 0b100,
                                      .optional_results = 0b110};
  static const OpDef* const ops[] = {&head, &head_gradient};
  return ops;
}

}  // namespace shardgraph
