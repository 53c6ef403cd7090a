#include "kernels/pointwise/pointwise.h"

#include <vector>

#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// All operands of the type of the first, named `names`.
absl::Status CheckAlike(absl::Span<const TensorType> operands,
                        const std::vector<absl::string_view>& names) {
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  SG_RETURN_IF_ERROR(CheckFloating(operands[0], names[0]));
  SG_RETURN_IF_ERROR(CheckRank(operands[0], names[0], 0, 8));
  for (size_t i = 1; i < operands.size(); ++i) {
    SG_RETURN_IF_ERROR(
        CheckType(operands[i], names[i], operands[0].dtype, operands[0].shape));
  }
  return absl::OkStatus();
}

// One result like the first operand.
absl::Status PushLike(absl::Span<const TensorType> operands,
                      std::vector<TensorType>* results) {
  results->push_back(TensorType(operands[0].dtype, operands[0].shape));
  return absl::OkStatus();
}

absl::Status InferAdd(const Attributes&, absl::Span<const TensorType> operands,
                      std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAlike(operands, {"a", "b"}));
  return PushLike(operands, results);
}

absl::Status InferUnary(const Attributes&,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAlike(operands, {"x"}));
  return PushLike(operands, results);
}

absl::Status InferUnaryGradient(const Attributes&,
                                absl::Span<const TensorType> operands,
                                std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAlike(operands, {"dy", "x"}));
  return PushLike(operands, results);
}

absl::Status InferSwiglu(const Attributes&,
                         absl::Span<const TensorType> operands,
                         std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAlike(operands, {"gate", "up"}));
  return PushLike(operands, results);
}

absl::Status InferSwigluGradient(const Attributes&,
                                 absl::Span<const TensorType> operands,
                                 std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAlike(operands, {"dy", "gate", "up"}));
  SG_RETURN_IF_ERROR(PushLike(operands, results));
  return PushLike(operands, results);
}

absl::Status InferCast(const Attributes& attributes,
                       absl::Span<const TensorType> operands,
                       std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAlike(operands, {"x"}));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "dtype"));
  DType dtype;
  SG_RETURN_IF_ERROR(ResultDType(attributes, operands[0].dtype, &dtype));
  results->push_back(TensorType(dtype, operands[0].shape));
  return absl::OkStatus();
}

absl::Status InferScale(const Attributes&,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x", "factor"}));
  SG_RETURN_IF_ERROR(CheckAlike(operands.subspan(0, 1), {"x"}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[1], "factor", DType::kF32));
  return PushLike(operands, results);
}

template <int kPerElement>
OpCost Cost(const Attributes&, absl::Span<const TensorType> operands,
            absl::Span<const TensorType> results) {
  OpCost cost = BytesMoved(operands, results);
  cost.pointwise_flops =
      static_cast<double>(kPerElement) * operands[0].num_elements();
  return cost;
}

}  // namespace

absl::Span<const OpDef* const> PointwiseOps() {
  static const OpDef* const ops[] = {
      new OpDef{.name = "add",
                .infer = InferAdd,
                .cost = Cost<1>,
                .strided_operands = 0b11},
      new OpDef{.name = "gelu",
                .infer = InferUnary,
                .cost = Cost<20>,
                .strided_operands = 0b1},
      new OpDef{.name = "gelu_gradient",
                .infer = InferUnaryGradient,
                .cost = Cost<30>,
                .strided_operands = 0b11},
      new OpDef{.name = "silu",
                .infer = InferUnary,
                .cost = Cost<15>,
                .strided_operands = 0b1},
      new OpDef{.name = "silu_gradient",
                .infer = InferUnaryGradient,
                .cost = Cost<20>,
                .strided_operands = 0b11},
      new OpDef{.name = "relu",
                .infer = InferUnary,
                .cost = Cost<1>,
                .strided_operands = 0b1},
      new OpDef{.name = "relu_gradient",
                .infer = InferUnaryGradient,
                .cost = Cost<1>,
                .strided_operands = 0b11},
      new OpDef{.name = "swiglu",
                .infer = InferSwiglu,
                .cost = Cost<16>,
                .strided_operands = 0b11},
      new OpDef{.name = "swiglu_gradient",
                .infer = InferSwigluGradient,
                .cost = Cost<23>,
                .incidental_results = 0b11,
                .strided_operands = 0b111,
                .strided_results = 0b11},
      new OpDef{.name = "cast",
                .infer = InferCast,
                .accumulates = 0b1,
                .strided_operands = 0b11,
                .strided_results = 0b1},
      new OpDef{.name = "scale",
                .infer = InferScale,
                .cost = Cost<1>,
                .strided_operands = 0b1},
  };
  return ops;
}

}  // namespace shardgraph
