#include "kernels/layout/layout.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status InferFill(const Attributes& attributes,
                       absl::Span<const TensorType> operands,
                       std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {}));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "shape"));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "dtype"));
  const std::string name = attributes.String("dtype");
  DType dtype;
  if (!ParseDType(name, &dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute dtype is \"", name, "\", must be a dtype such as F32"));
  }
  const double value = attributes.Double("value");
  if (!IsFloating(dtype) && value != std::trunc(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute value is ", value, ", must be an integer for ", name));
  }
  Dims shape;
  for (const int64_t size : attributes.Ints("shape")) {
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "attribute shape holds ", size, ", sizes must not be negative"));
    }
    shape.push_back(size);
  }
  results->push_back(TensorType(dtype, shape));
  return absl::OkStatus();
}

absl::Status InferKvWrite(const Attributes&,
                          absl::Span<const TensorType> operands,
                          std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"cache", "new", "position"}));
  const TensorType& cache = operands[0];
  SG_RETURN_IF_ERROR(CheckFloating(cache, "cache"));
  SG_RETURN_IF_ERROR(CheckRank(cache, "cache", 4, 4));
  SG_RETURN_IF_ERROR(
      CheckType(operands[1], "new", cache.dtype,
                {cache.dim(0), kAnySize, cache.dim(2), cache.dim(3)}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[2], "position", DType::kI64));
  results->push_back(cache);
  return absl::OkStatus();
}

absl::Status InferTakeShard(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"full"}));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, kGroupAttribute));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "size"));
  SG_RETURN_IF_ERROR(CheckRank(operands[0], "full", 1, 1));
  const int64_t size = attributes.Int("size");
  if (size < 1 || operands[0].dim(0) % size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute size is ", size, ", must be at least 1 and ",
                     "divide full, which is ", operands[0].ToString()));
  }
  results->push_back(
      TensorType(operands[0].dtype, {operands[0].dim(0) / size}));
  return absl::OkStatus();
}

// Of the whole only the piece is read.
OpCost TakeShardCost(const Attributes&, absl::Span<const TensorType>,
                     absl::Span<const TensorType> results) {
  OpCost cost;
  cost.bytes = 2 * results[0].num_elements() * SizeOf(results[0].dtype);
  return cost;
}

// Only the new rows move.
OpCost KvWriteCost(const Attributes&, absl::Span<const TensorType> operands,
                   absl::Span<const TensorType>) {
  OpCost cost;
  cost.bytes = 2 * operands[1].num_elements() * SizeOf(operands[1].dtype);
  return cost;
}

}  // namespace

absl::Span<const OpDef* const> LayoutOps() {
  static const OpDef* const ops[] = {
      new OpDef{.name = "fill", .infer = InferFill, .strided_results = 0b1},
      new OpDef{.name = "kv_write",
                .infer = InferKvWrite,
                .cost = KvWriteCost,
                .in_place = {0},
                .strided_operands = 0b10},
      new OpDef{
          .name = "take_shard", .infer = InferTakeShard, .cost = TakeShardCost},
  };
  return ops;
}

}  // namespace shardgraph
