#include "kernels/optimizer/optimizer.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"
#include "kernels/step_state.h"

namespace shardgraph {
namespace {

constexpr int64_t kGroups = StepState::kMaxGroups;

// Well-formed, and every name of `per_group` given for each group that occurs.
absl::Status CheckSegments(const Attributes& attributes,
                           const std::vector<absl::string_view>& per_group) {
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "segments"));
  const std::vector<int64_t>& segments = attributes.Ints("segments");
  if (segments.size() % 3 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute segments has ", segments.size(),
                     " numbers, must be triples (begin, end, group)"));
  }
  int64_t last = 0;
  for (size_t i = 0; i < segments.size(); i += 3) {
    const int64_t begin = segments[i], end = segments[i + 1];
    const int64_t group = segments[i + 2];
    if (begin < last || end < begin) {
      return absl::InvalidArgumentError(absl::StrCat(
          "attribute segments: [", begin, ", ", end,
          ") must be sorted and disjoint; the one before ends at ", last));
    }
    if (group < 0 || group >= kGroups) {
      return absl::InvalidArgumentError(
          absl::StrCat("attribute segments: group ", group, " must be in [0, ",
                       kGroups, ")"));
    }
    last = end;
    for (const absl::string_view name : per_group) {
      SG_RETURN_IF_ERROR(
          CheckAttribute(attributes, absl::StrCat(name, "_", group)));
    }
  }
  return absl::OkStatus();
}

absl::Status InferAccumulate(const Attributes&,
                             absl::Span<const TensorType> operands,
                             std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(
      CheckCount(operands, {"destination", "contribution", "micro"}));
  const TensorType& destination = operands[0];
  SG_RETURN_IF_ERROR(
      CheckDType(destination, "destination", {DType::kF32, DType::kF64}));
  SG_RETURN_IF_ERROR(CheckType(operands[1], "contribution", destination.dtype,
                               destination.shape));
  SG_RETURN_IF_ERROR(CheckScalar(operands[2], "micro", DType::kI64));
  results->push_back(destination);
  return absl::OkStatus();
}

absl::Status InferSumPieces(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"pieces"}));
  SG_RETURN_IF_ERROR(CheckRank(operands[0], "pieces", 1, 1));
  SG_RETURN_IF_ERROR(
      CheckDType(operands[0], "pieces", {DType::kBF16, DType::kF32}));
  SG_RETURN_IF_ERROR(CheckAttribute(attributes, "size"));
  const int64_t size = attributes.Int("size");
  if (size < 1 || operands[0].dim(0) % size != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute size is ", size, ", must be at least 1 and ",
                     "divide the ", operands[0].dim(0), " elements of pieces"));
  }
  results->push_back(TensorType(DType::kF32, {operands[0].dim(0) / size}));
  return absl::OkStatus();
}

absl::Status InferSumOfSquares(const Attributes& attributes,
                               absl::Span<const TensorType> operands,
                               std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(operands, {"gradient"}));
  SG_RETURN_IF_ERROR(
      CheckType(operands[0], "gradient", DType::kF32, {kAnySize}));
  SG_RETURN_IF_ERROR(CheckSegments(attributes, {}));
  results->push_back(TensorType(DType::kF64, {}));
  return absl::OkStatus();
}

absl::Status InferFinishGradients(const Attributes& attributes,
                                  absl::Span<const TensorType> operands,
                                  std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(
      operands, {"sums", "token_count", "nominal_tokens", "loss_scale"}));
  SG_RETURN_IF_ERROR(CheckType(operands[0], "sums", DType::kF64, {kAnySize}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[1], "token_count", DType::kF64));
  SG_RETURN_IF_ERROR(CheckScalar(operands[2], "nominal_tokens", DType::kF64));
  SG_RETURN_IF_ERROR(CheckScalar(operands[3], "loss_scale", DType::kF32));
  if (!(attributes.Double("max_norm") >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute max_norm is ", attributes.Double("max_norm"),
                     ", must be at least 0 (0: no clipping)"));
  }
  results->push_back(TensorType(DType::kF64, {}));
  results->push_back(TensorType(DType::kF64, {}));
  results->push_back(TensorType(DType::kI32, {}));
  return absl::OkStatus();
}

// master, gradient, `states` more F32 shards and the compute copy; pushes the
// types of those that are updated.
absl::Status CheckShards(const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         const std::vector<absl::string_view>& names,
                         int states, std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckType(operands[0], "master", DType::kF32, {kAnySize}));
  const Dims shape = operands[0].shape;
  results->push_back(operands[0]);
  for (int i = 1; i < 2 + states; ++i) {
    SG_RETURN_IF_ERROR(CheckType(operands[i], names[i], DType::kF32, shape));
    if (i > 1) results->push_back(operands[i]);
  }
  if (attributes.Int("has_compute") != 0) {
    const TensorType& compute = operands[2 + states];
    SG_RETURN_IF_ERROR(
        CheckDType(compute, "compute", {DType::kBF16, DType::kF16}));
    SG_RETURN_IF_ERROR(CheckShape(compute, "compute", shape));
    results->push_back(compute);
  }
  return absl::OkStatus();
}

absl::Status InferAdamW(const Attributes& attributes,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) {
  std::vector<absl::string_view> names = {"master", "gradient", "exp_avg",
                                          "exp_avg_sq"};
  if (attributes.Int("has_compute") != 0) names.push_back("compute");
  const size_t first_scalar = names.size();
  for (const absl::string_view name :
       {"learning_rate", "beta1_power", "beta2_power", "gradient_scale",
        "found_inf"}) {
    names.push_back(name);
  }
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  SG_RETURN_IF_ERROR(CheckShards(attributes, operands, names, 2, results));
  const absl::Span<const TensorType> scalars = operands.subspan(first_scalar);
  SG_RETURN_IF_ERROR(
      CheckType(scalars[0], "learning_rate", DType::kF32, {kGroups}));
  SG_RETURN_IF_ERROR(
      CheckType(scalars[1], "beta1_power", DType::kF64, {kGroups}));
  SG_RETURN_IF_ERROR(
      CheckType(scalars[2], "beta2_power", DType::kF64, {kGroups}));
  SG_RETURN_IF_ERROR(CheckScalar(scalars[3], "gradient_scale", DType::kF64));
  SG_RETURN_IF_ERROR(CheckScalar(scalars[4], "found_inf", DType::kI32));
  return CheckSegments(attributes,
                       {"beta1", "beta2", "epsilon", "weight_decay"});
}

absl::Status InferSgd(const Attributes& attributes,
                      absl::Span<const TensorType> operands,
                      std::vector<TensorType>* results) {
  const bool has_momentum = attributes.Int("has_momentum") != 0;
  std::vector<absl::string_view> names = {"master", "gradient"};
  if (has_momentum) names.push_back("momentum_buffer");
  if (attributes.Int("has_compute") != 0) names.push_back("compute");
  const size_t first_scalar = names.size();
  for (const absl::string_view name :
       {"learning_rate", "gradient_scale", "found_inf"}) {
    names.push_back(name);
  }
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  SG_RETURN_IF_ERROR(
      CheckShards(attributes, operands, names, has_momentum, results));
  const absl::Span<const TensorType> scalars = operands.subspan(first_scalar);
  SG_RETURN_IF_ERROR(
      CheckType(scalars[0], "learning_rate", DType::kF32, {kGroups}));
  SG_RETURN_IF_ERROR(CheckScalar(scalars[1], "gradient_scale", DType::kF64));
  SG_RETURN_IF_ERROR(CheckScalar(scalars[2], "found_inf", DType::kI32));
  std::vector<absl::string_view> per_group = {"weight_decay"};
  if (has_momentum) per_group.push_back("momentum");
  return CheckSegments(attributes, per_group);
}

absl::Status InferAdvanceState(const Attributes&,
                               absl::Span<const TensorType> operands,
                               std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckCount(
      operands, {"optimizer_step", "beta1_power", "beta2_power", "found_inf"}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[0], "optimizer_step", DType::kI64));
  SG_RETURN_IF_ERROR(
      CheckType(operands[1], "beta1_power", DType::kF64, {kGroups}));
  SG_RETURN_IF_ERROR(
      CheckType(operands[2], "beta2_power", DType::kF64, {kGroups}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[3], "found_inf", DType::kI32));
  results->assign(operands.begin(), operands.begin() + 3);
  return absl::OkStatus();
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

absl::Span<const OpDef* const> OptimizerOps() {
  static const OpDef* const ops[] = {
      new OpDef{.name = "accumulate",
                .infer = InferAccumulate,
                .cost = Cost<1>,
                .in_place = {0}},
      new OpDef{.name = "sum_pieces", .infer = InferSumPieces, .cost = Cost<1>},
      new OpDef{.name = "sum_of_squares",
                .infer = InferSumOfSquares,
                .cost = Cost<2>},
      new OpDef{.name = "finish_gradients", .infer = InferFinishGradients},
      new OpDef{.name = "adamw",
                .infer = InferAdamW,
                .cost = Cost<15>,
                .in_place = {0, 2, 3, 4}},
      new OpDef{.name = "sgd",
                .infer = InferSgd,
                .cost = Cost<6>,
                .in_place = {0, 2, 3}},
      new OpDef{.name = "advance_state",
                .infer = InferAdvanceState,
                .in_place = {0, 1, 2}},
  };
  return ops;
}

absl::StatusOr<std::vector<ShardRange>> ClipSegments(
    absl::Span<const int64_t> segments, int64_t n, int rank, int group_size) {
  const int64_t offset = rank * n;
  std::vector<ShardRange> ranges;
  for (size_t i = 0; i + 2 < segments.size(); i += 3) {
    if (segments[i + 1] > n * group_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment [", segments[i], ", ", segments[i + 1],
                       ") ends behind the flat parameter of ", group_size,
                       " shards of ", n, " elements"));
    }
    const int64_t begin = std::max(segments[i] - offset, int64_t{0});
    const int64_t end = std::min(segments[i + 1] - offset, n);
    if (begin < end) {
      ranges.push_back({begin, end, static_cast<int>(segments[i + 2])});
    }
  }
  return ranges;
}

double GroupAttribute(const Attributes& attributes, absl::string_view name,
                      int group, double otherwise) {
  return attributes.Double(absl::StrCat(name, "_", group), otherwise);
}

}  // namespace shardgraph
