#include "kernels/op.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace shardgraph {

int TiedOperand(const OpDef& op, const Attributes& attributes, int num_operands,
                int num_results, int r) {
  if (r < static_cast<int>(op.in_place.size()) && op.in_place[r] >= 0)
    return op.in_place[r];
  const uint64_t mask = static_cast<uint64_t>(attributes.Int("accumulate"));
  if ((mask >> r & 1) == 0) return -1;
  int after =
      0;  // accumulating results behind r: their operands come behind r's
  for (int i = r + 1; i < num_results; ++i) after += mask >> i & 1;
  return num_operands - 1 - after;
}

bool Omits(const Attributes& attributes, int r) {
  return (attributes.Int("omit") >> r & 1) != 0;
}

absl::Status InferResults(const OpDef& op, const Attributes& attributes,
                          absl::Span<const TensorType> operands,
                          std::vector<TensorType>* results) {
  for (size_t i = 0; i < operands.size(); ++i) {
    const TensorType& type = operands[i];
    if (type.rank() > 0 && type.strides.back() != 1 && type.shape.back() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          std::string(op.name), ": operand ", i, " is ", type.ToString(),
          "; the last dimension must have stride 1"));
    }
    if (!type.contiguous() &&
        (op.strided_operands >> std::min<size_t>(i, 31) & 1) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(op.name), ": operand ", i,
                       " must be contiguous, is ", type.ToString()));
    }
  }
  results->clear();
  const uint64_t accumulate =
      static_cast<uint64_t>(attributes.Int("accumulate"));
  if ((accumulate & ~static_cast<uint64_t>(op.accumulates)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(op.name), ": accumulate=", accumulate,
                     " names a result that cannot accumulate"));
  }
  const uint64_t omit = static_cast<uint64_t>(attributes.Int("omit"));
  if ((omit & (~static_cast<uint64_t>(op.optional_results) | accumulate)) !=
      0) {
    return absl::InvalidArgumentError(absl::StrCat(
        std::string(op.name), ": omit=", omit,
        " names a result that cannot be left out, or accumulates"));
  }
  const int tied = std::popcount(accumulate);
  if (tied > static_cast<int>(operands.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(op.name), ": accumulate=", accumulate,
                     " needs ", tied, " destination operands"));
  }
  const absl::Status status = op.infer(
      attributes, operands.subspan(0, operands.size() - tied), results);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(std::string(op.name), ": ",
                                                    status.message()));
  }
  for (int r = 0; r < static_cast<int>(results->size()); ++r) {
    if ((omit >> r & 1) != 0)
      (*results)[r] = TensorType((*results)[r].dtype, {0});
    if ((accumulate >> r & 1) == 0) continue;
    const int operand =
        TiedOperand(op, attributes, operands.size(), results->size(), r);
    const TensorType& destination = operands[operand];
    if (destination.dtype != (*results)[r].dtype ||
        destination.shape != (*results)[r].shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(op.name), ": result ", r, " is ",
                       (*results)[r].ToString(), " but its destination is ",
                       destination.ToString()));
    }
    (*results)[r] = destination;  // strides are the destination's
  }
  return absl::OkStatus();
}

OpCost CostOfMemory(absl::Span<const TensorType> operands,
                    absl::Span<const TensorType> results) {
  OpCost cost;
  for (const TensorType& type : operands)
    cost.bytes += type.num_elements() * SizeOf(type.dtype);
  for (const TensorType& type : results)
    cost.bytes += type.num_elements() * SizeOf(type.dtype);
  return cost;
}

OpCost CostOf(const OpDef& op, const Attributes& attributes,
              absl::Span<const TensorType> operands,
              absl::Span<const TensorType> results) {
  if (op.cost != nullptr) return op.cost(attributes, operands, results);
  return CostOfMemory(operands, results);
}

}  // namespace shardgraph
