#include "kernels/random/dropout.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status InferDropout(const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x", "sequence_ids", "run_step"}));
  const TensorType& x = operands[0];
  SG_RETURN_IF_ERROR(CheckFloating(x, "x"));
  SG_RETURN_IF_ERROR(CheckRank(x, "x", 2, 2));
  SG_RETURN_IF_ERROR(
      CheckType(operands[1], "sequence_ids", DType::kI64, {x.dim(0)}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[2], "run_step", DType::kI64));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "rate"));
  const double rate = attributes.Double("rate");
  if (!(rate >= 0 && rate < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute rate is ", rate, ", must be in [0, 1)"));
  }
  results->push_back(TensorType(x.dtype, x.shape));
  return absl::OkStatus();
}

// Ten rounds of two products for four numbers, and the rest.
OpCost DropoutCost(const Attributes&, absl::Span<const TensorType> operands,
                   absl::Span<const TensorType> results) {
  OpCost cost = BytesMoved(operands, results);
  cost.pointwise_flops = 20.0 * operands[0].num_elements();
  return cost;
}

}  // namespace

absl::Span<const OpDef* const> RandomOps() {
  static const OpDef* const ops[] = {
      new OpDef{.name = "dropout", .infer = InferDropout, .cost = DropoutCost},
  };
  return ops;
}

}  // namespace shardgraph
