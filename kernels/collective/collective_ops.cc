#include "kernels/collective/collective_ops.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/collective/communicator.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

absl::Status CheckGroupAttributes(const Attributes& attributes) {
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, kGroupAttribute));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "size"));
  if (attributes.Int("size") >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "attribute size is ", attributes.Int("size"), ", must be at least 1"));
}

// One operand of `size` equal pieces.
absl::Status CheckPieces(const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         absl::string_view name) {
  SG_RETURN_IF_ERROR(CheckGroupAttributes(attributes));
  SG_RETURN_IF_ERROR(CheckCount(operands, {name}));
  SG_RETURN_IF_ERROR(CheckRank(operands[0], name, 1, 1));
  if (operands[0].dim(0) % attributes.Int("size") == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " is ", operands[0].ToString(), ", must be a multiple of the ",
      attributes.Int("size"), " ranks of its group"));
}

absl::Status InferAllGather(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckGroupAttributes(attributes));
  SG_RETURN_IF_ERROR(CheckCount(operands, {"shard"}));
  SG_RETURN_IF_ERROR(CheckRank(operands[0], "shard", 1, 1));
  results->push_back(TensorType(operands[0].dtype,
                                {operands[0].dim(0) * attributes.Int("size")}));
  return absl::OkStatus();
}

absl::Status InferReduceScatter(const Attributes& attributes,
                                absl::Span<const TensorType> operands,
                                std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckPieces(attributes, operands, "full"));
  SG_RETURN_IF_ERROR(
      CheckDType(operands[0], "full", {DType::kF32, DType::kF64}));
  results->push_back(TensorType(operands[0].dtype,
                                {operands[0].dim(0) / attributes.Int("size")}));
  return absl::OkStatus();
}

absl::Status InferAllReduce(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckGroupAttributes(attributes));
  SG_RETURN_IF_ERROR(CheckCount(operands, {"x"}));
  SG_RETURN_IF_ERROR(CheckDType(
      operands[0], "x", {DType::kF32, DType::kF64, DType::kI32, DType::kI64}));
  const std::string reduce = attributes.String("reduce", "sum");
  if (reduce != "sum" && reduce != "max") {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute reduce is \"", reduce, "\", must be \"sum\" or \"max\""));
  }
  results->push_back(operands[0]);
  return absl::OkStatus();
}

absl::Status InferAllToAll(const Attributes& attributes,
                           absl::Span<const TensorType> operands,
                           std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckPieces(attributes, operands, "x"));
  results->push_back(operands[0]);
  return absl::OkStatus();
}

// The communicator is there and of the size that the plan was made for.
absl::Status CheckCommunicator(const KernelContext& context) {
  const std::string group = context.attributes->String(kGroupAttribute);
  if (context.communicator == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(context.op->name),
                     ": no communicator for the group \"", group, "\""));
  }
  if (context.communicator->size() != context.attributes->Int("size")) {
    return absl::FailedPreconditionError(absl::StrCat(
        std::string(context.op->name), ": the group \"", group, "\" has ",
        context.communicator->size(), " ranks, the plan was made for ",
        context.attributes->Int("size")));
  }
  return absl::OkStatus();
}

using Prepared = absl::StatusOr<std::unique_ptr<PreparedKernel>>;

Prepared PrepareAllGather(const KernelContext& context) {
  SG_RETURN_IF_ERROR(CheckCommunicator(context));
  return MakeKernel([communicator = context.communicator,
                     shard = context.operands[0].data,
                     full = context.results[0].data,
                     count = context.operands[0].type.num_elements(),
                     dtype = context.operands[0].type.dtype](Lane& lane) {
    return communicator->AllGather(shard, full, count, dtype, lane);
  });
}

Prepared PrepareReduceScatter(const KernelContext& context) {
  SG_RETURN_IF_ERROR(CheckCommunicator(context));
  return MakeKernel([communicator = context.communicator,
                     full = context.operands[0].data,
                     shard = context.results[0].data,
                     count = context.results[0].type.num_elements(),
                     dtype = context.operands[0].type.dtype](Lane& lane) {
    return communicator->ReduceScatter(full, shard, count, dtype, lane);
  });
}

Prepared PrepareAllReduce(const KernelContext& context) {
  SG_RETURN_IF_ERROR(CheckCommunicator(context));
  const ReduceOp op = context.attributes->String("reduce", "sum") == "max"
                          ? ReduceOp::kMax
                          : ReduceOp::kSum;
  return MakeKernel([communicator = context.communicator, op,
                     data = context.results[0].data,
                     count = context.results[0].type.num_elements(),
                     dtype = context.results[0].type.dtype](Lane& lane) {
    return communicator->AllReduce(data, count, dtype, op, lane);
  });
}

Prepared PrepareAllToAll(const KernelContext& context) {
  SG_RETURN_IF_ERROR(CheckCommunicator(context));
  return MakeKernel([communicator = context.communicator,
                     send = context.operands[0].data,
                     receive = context.results[0].data,
                     count = context.operands[0].type.num_elements() /
                             context.communicator->size(),
                     dtype = context.operands[0].type.dtype](Lane& lane) {
    return communicator->AllToAll(send, receive, count, dtype, lane);
  });
}

}  // namespace

absl::Span<const OpDef* const> CollectiveOps() {
  static const OpDef* const ops[] = {
      new OpDef{.name = "all_gather",
                .infer = InferAllGather,
                .lane = LaneKind::kGather},
      new OpDef{.name = "reduce_scatter",
                .infer = InferReduceScatter,
                .lane = LaneKind::kReduce},
      new OpDef{.name = "all_reduce",
                .infer = InferAllReduce,
                .in_place = {0},
                .lane = LaneKind::kReduce},
      new OpDef{.name = "all_to_all",
                .infer = InferAllToAll,
                .lane = LaneKind::kReduce},
  };
  return ops;
}

absl::Span<const KernelDef> CollectiveKernels() {
  static constexpr KernelDef kernels[] = {
      {.op = "all_gather", .prepare = PrepareAllGather},
      {.op = "reduce_scatter", .prepare = PrepareReduceScatter},
      {.op = "all_reduce", .prepare = PrepareAllReduce},
      {.op = "all_to_all", .prepare = PrepareAllToAll},
  };
  return kernels;
}

}  // namespace shardgraph
