#include "kernels/embedding/embedding.h"

#include <cmath>
#include <numbers>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status CheckCountAttribute(const Attributes& attributes,
                                 absl::string_view name) {
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, name));
  if (attributes.Int(name) >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("attribute ", name, " is ",
                                                 attributes.Int(name),
                                                 ", must not be negative"));
}

absl::Status InferEmbedding(const Attributes&,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"ids", "weight"}));
  SG_RETURN_IF_ERROR(CheckType(operands[0], "ids", DType::kI32, {kAnySize}));
  SG_RETURN_IF_ERROR(CheckFloating(operands[1], "weight"));
  SG_RETURN_IF_ERROR(CheckRank(operands[1], "weight", 2, 2));
  results->push_back(
      TensorType(operands[1].dtype, {operands[0].dim(0), operands[1].dim(1)}));
  return absl::OkStatus();
}

// The table is not read whole.
OpCost EmbeddingCost(const Attributes&, absl::Span<const TensorType> operands,
                     absl::Span<const TensorType> results) {
  OpCost cost = BytesMoved({operands[0]}, results);
  cost.bytes += results[0].num_elements() * SizeOf(results[0].dtype);
  return cost;
}

absl::Status InferEmbeddingGradient(const Attributes& attributes,
                                    absl::Span<const TensorType> operands,
                                    std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"ids", "dy"}));
  SG_RETURN_IF_ERROR(CheckType(operands[0], "ids", DType::kI32, {kAnySize}));
  SG_RETURN_IF_ERROR(CheckFloating(operands[1], "dy"));
  SG_RETURN_IF_ERROR(
      CheckShape(operands[1], "dy", {operands[0].dim(0), kAnySize}));
  SG_RETURN_IF_ERROR(CheckCountAttribute(attributes, "rows"));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, operands[1].dtype, &dtype));
  results->push_back(
      TensorType(dtype, {attributes.Int("rows"), operands[1].dim(1)}));
  return absl::OkStatus();
}

// An accumulating gradient touches at most N rows of the table.
OpCost EmbeddingGradientCost(const Attributes& attributes,
                             absl::Span<const TensorType> operands,
                             absl::Span<const TensorType> results) {
  OpCost cost = BytesMoved(operands.subspan(0, 2), {});
  const int64_t size = SizeOf(results[0].dtype);
  cost.bytes += attributes.Int("accumulate") != 0
                    ? 2 * operands[1].num_elements() * size
                    : results[0].num_elements() * size;
  cost.pointwise_flops = static_cast<double>(operands[1].num_elements());
  return cost;
}

absl::Status InferPositions(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"position"}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[0], "position", DType::kI64));
  SG_RETURN_IF_ERROR(CheckCountAttribute(attributes, "batch"));
  SG_RETURN_IF_ERROR(CheckCountAttribute(attributes, "length"));
  results->push_back(TensorType(
      DType::kI32, {attributes.Int("batch") * attributes.Int("length")}));
  return absl::OkStatus();
}

absl::Status InferRotary(const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x", "positions"}));
  const TensorType& x = operands[0];
  SG_RETURN_IF_ERROR(CheckFloating(x, "x"));
  SG_RETURN_IF_ERROR(CheckRank(x, "x", 4, 4));
  if (x.dim(3) % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "x is ", x.ToString(), ", its last dimension must be even"));
  }
  SG_RETURN_IF_ERROR(
      CheckType(operands[1], "positions", DType::kI32, {x.dim(0) * x.dim(1)}));
  SG_RETURN_IF_ERROR(CheckRotaryAttributes(attributes));
  results->push_back(TensorType(x.dtype, x.shape));
  return absl::OkStatus();
}

OpCost RotaryCost(const Attributes&, absl::Span<const TensorType> operands,
                  absl::Span<const TensorType> results) {
  OpCost cost = BytesMoved(operands, results);
  cost.pointwise_flops = 3.0 * operands[0].num_elements();
  return cost;
}

}  // namespace

absl::Status CheckRotaryAttributes(const Attributes& attributes) {
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "theta"));
  const std::string type = attributes.String("rope_type");
  if (type == "llama3") {
    for (const absl::string_view name :
         {"factor", "low_freq_factor", "high_freq_factor",
          "original_max_position"}) {
      SG_RETURN_IF_ERROR(CheckAttribute(attributes, name));
    }
  } else if (!type.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute rope_type is \"", type, "\", must be \"\" or \"llama3\""));
  }
  return absl::OkStatus();
}

absl::Span<const OpDef* const> EmbeddingOps() {
  static const OpDef* const ops[] = {
      new OpDef{
          .name = "embedding", .infer = InferEmbedding, .cost = EmbeddingCost},
      new OpDef{.name = "embedding_gradient",
                .infer = InferEmbeddingGradient,
                .cost = EmbeddingGradientCost,
                .accumulates = 0b1},
      new OpDef{.name = "positions", .infer = InferPositions},
      new OpDef{.name = "rotary",
                .infer = InferRotary,
                .cost = RotaryCost,
                .strided_operands = 0b1,
                .strided_results = 0b1},
  };
  return ops;
}

std::vector<float> RotaryFrequencies(const Attributes& attributes,
                                     int64_t head_size) {
  const double theta = attributes.Double("theta");
  std::vector<float> frequencies(head_size / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent =
        static_cast<float>(2 * i) / static_cast<float>(head_size);
    frequencies[i] = 1.0f / static_cast<float>(std::pow(theta, exponent));
  }
  if (attributes.String("rope_type") != "llama3") return frequencies;
  // Long wavelengths are stretched by `factor`, short ones kept, those between
  // interpolated.
  const double factor = attributes.Double("factor");
  const double low = attributes.Double("low_freq_factor");
  const double high = attributes.Double("high_freq_factor");
  const double length =
      static_cast<double>(attributes.Int("original_max_position"));
  for (float& frequency : frequencies) {
    const double wavelength = 2 * std::numbers::pi / frequency;
    if (wavelength > length / low) {
      frequency = static_cast<float>(frequency / factor);
    } else if (wavelength >= length / high) {
      const double smooth = (length / wavelength - low) / (high - low);
      frequency = static_cast<float>((1 - smooth) * frequency / factor +
                                     smooth * frequency);
    }
  }
  return frequencies;
}

}  // namespace shardgraph
