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
      operands,
      {"sums", "token_count", "nominal_tokens", "loss_scale", "stop"}));
  SG_RETURN_IF_ERROR(CheckType(operands[0], "sums", DType::kF64, {kAnySize}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[1], "token_count", DType::kF64));
  SG_RETURN_IF_ERROR(CheckScalar(operands[2], "nominal_tokens", DType::kF64));
  SG_RETURN_IF_ERROR(CheckScalar(operands[3], "loss_scale", DType::kF32));
  SG_RETURN_IF_ERROR(CheckScalar(operands[4], "stop", DType::kI32));
  const int64_t policy = attributes.Int("non_finite");
  if (policy < 0 || policy > static_cast<int64_t>(NonFinite::kIgnore)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute non_finite is ", policy, ", must be 0, 1 or 2"));
  }
  if (!(attributes.Double("max_norm") >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute max_norm is ", attributes.Double("max_norm"),
                     ", must be at least 0 (0: no clipping)"));
  }
  results->push_back(TensorType(DType::kF64, {}));
  results->push_back(TensorType(DType::kF64, {}));
  results->push_back(TensorType(DType::kI32, {}));
  results->push_back(operands[4]);
  return absl::OkStatus();
}

absl::Status InferUpdateLossScale(const Attributes& attributes,
                                  absl::Span<const TensorType> operands,
                                  std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(
      CheckCount(operands, {"loss_scale", "growth_counter", "found_inf"}));
  SG_RETURN_IF_ERROR(CheckScalar(operands[0], "loss_scale", DType::kF32));
  SG_RETURN_IF_ERROR(CheckScalar(operands[1], "growth_counter", DType::kI32));
  SG_RETURN_IF_ERROR(CheckScalar(operands[2], "found_inf", DType::kI32));
  for (const absl::string_view name : {"growth", "backoff", "interval"})
    SG_RETURN_IF_ERROR(CheckAttribute(attributes, name));
  results->assign(operands.begin(), operands.begin() + 2);
  return absl::OkStatus();
}

// What adamw, sgd and lion share; pushes the types of what is updated.
// `moments` and `scalars` are names of operands, `per_group` of constants.
absl::Status InferUpdate(absl::string_view op, const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         const std::vector<absl::string_view>& moments,
                         const std::vector<absl::string_view>& scalars,
                         const std::vector<absl::string_view>& per_group,
                         std::vector<TensorType>* results) {
  const UpdatePlaces places = PlacesOf(
      op, attributes, operands.size() > 2 ? operands[2] : TensorType());
  std::vector<absl::string_view> names = {"master", "gradient"};
  names.insert(names.end(), moments.begin(), moments.end());
  if (places.has_compute) names.push_back("compute");
  names.insert(names.end(), scalars.begin(), scalars.end());
  if (places.rounds) names.push_back("run_step");
  SG_RETURN_IF_ERROR(CheckCount(operands, names));

  SG_RETURN_IF_ERROR(CheckType(operands[0], "master", DType::kF32, {kAnySize}));
  const Dims shape = operands[0].shape;
  SG_RETURN_IF_ERROR(CheckType(operands[1], "gradient", DType::kF32, shape));
  results->push_back(operands[0]);
  for (size_t i = 0; i < moments.size(); ++i) {
    SG_RETURN_IF_ERROR(CheckType(operands[2 + i], moments[i],
                                 places.rounds ? DType::kBF16 : DType::kF32,
                                 shape));
    results->push_back(operands[2 + i]);
  }
  if (places.has_compute) {
    const TensorType& compute = operands[places.compute()];
    SG_RETURN_IF_ERROR(
        CheckDType(compute, "compute", {DType::kBF16, DType::kF16}));
    SG_RETURN_IF_ERROR(CheckShape(compute, "compute", shape));
    results->push_back(compute);
  }
  for (size_t i = 0; i < scalars.size(); ++i) {
    const TensorType& type = operands[places.scalars() + i];
    const absl::string_view name = scalars[i];
    if (name == "learning_rate") {
      SG_RETURN_IF_ERROR(CheckType(type, name, DType::kF32, {kGroups}));
    } else if (name == "gradient_scale") {
      SG_RETURN_IF_ERROR(CheckScalar(type, name, DType::kF64));
    } else if (name == "found_inf") {
      SG_RETURN_IF_ERROR(CheckScalar(type, name, DType::kI32));
    } else {
      SG_RETURN_IF_ERROR(CheckType(type, name, DType::kF64, {kGroups}));
    }
  }
  if (places.rounds) {
    SG_RETURN_IF_ERROR(
        CheckScalar(operands[operands.size() - 1], "run_step", DType::kI64));
    SG_RETURN_IF_ERROR(CheckAttribute(attributes, "seed"));
    SG_RETURN_IF_ERROR(CheckAttribute(attributes, "key"));
  }
  return CheckSegments(attributes, per_group);
}

absl::Status InferAdamW(const Attributes& attributes,
                        absl::Span<const TensorType> operands,
                        std::vector<TensorType>* results) {
  return InferUpdate("adamw", attributes, operands, {"exp_avg", "exp_avg_sq"},
                     {"learning_rate", "beta1_power", "beta2_power",
                      "gradient_scale", "found_inf"},
                     {"beta1", "beta2", "epsilon", "weight_decay"}, results);
}

absl::Status InferSgd(const Attributes& attributes,
                      absl::Span<const TensorType> operands,
                      std::vector<TensorType>* results) {
  std::vector<absl::string_view> moments, per_group = {"weight_decay"};
  if (attributes.Int("has_momentum") != 0) {
    moments.push_back("momentum_buffer");
    per_group.push_back("momentum");
  }
  return InferUpdate("sgd", attributes, operands, moments,
                     {"learning_rate", "gradient_scale", "found_inf"},
                     per_group, results);
}

absl::Status InferLion(const Attributes& attributes,
                       absl::Span<const TensorType> operands,
                       std::vector<TensorType>* results) {
  return InferUpdate("lion", attributes, operands, {"exp_avg"},
                     {"learning_rate", "gradient_scale", "found_inf"},
                     {"beta1", "beta2", "weight_decay"}, results);
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
      new OpDef{.name = "finish_gradients",
                .infer = InferFinishGradients,
                .in_place = {-1, -1, -1, 4}},
      new OpDef{.name = "update_loss_scale",
                .infer = InferUpdateLossScale,
                .in_place = {0, 1}},
      new OpDef{.name = "adamw",
                .infer = InferAdamW,
                .cost = Cost<15>,
                .in_place = {0, 2, 3, 4}},
      new OpDef{.name = "sgd",
                .infer = InferSgd,
                .cost = Cost<6>,
                .in_place = {0, 2, 3}},
      new OpDef{.name = "lion",
                .infer = InferLion,
                .cost = Cost<10>,
                .in_place = {0, 2, 3}},
      new OpDef{.name = "advance_state",
                .infer = InferAdvanceState,
                .in_place = {0, 1, 2}},
  };
  return ops;
}

UpdatePlaces PlacesOf(absl::string_view op, const Attributes& attributes,
                      const TensorType& moment) {
  UpdatePlaces places;
  places.moments = op == "adamw"  ? 2
                   : op == "lion" ? 1
                                  : attributes.Int("has_momentum") != 0;
  places.has_compute = attributes.Int("has_compute") != 0;
  places.rounds = places.moments > 0 && moment.dtype == DType::kBF16;
  return places;
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
