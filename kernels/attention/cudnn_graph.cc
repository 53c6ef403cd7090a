#include "kernels/attention/cudnn_graph.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph::cudnn {
namespace {

using Raw = cudnnBackendDescriptor_t;
using Sizes = std::vector<int64_t>;

Raw RawOf(const Descriptor& descriptor) {
  return static_cast<Raw>(descriptor.get());
}

// Adds operations. The first error stays; after it nothing happens.
class Builder {
 public:
  explicit Builder(const Shape& shape) : shape_(shape) {}

  void AddForward();
  void AddGradient();
  absl::StatusOr<Descriptor> Finish(cudnnHandle_t handle);

  // What the finished graph refers to.
  std::vector<Descriptor> TakeParts() { return std::move(parts_); }

 private:
  struct TensorOptions {
    int64_t name = -1;  // -1: only inside the graph
    bool in_host_memory = false;
  };

  Descriptor Make(cudnnBackendDescriptorType_t type) {
    if (!status_.ok()) return nullptr;
    absl::StatusOr<Descriptor> made = MakeDescriptor(type);
    status_ = made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  void Set(const Descriptor& descriptor, cudnnBackendAttributeName_t name,
           cudnnBackendAttributeType_t type, const void* values,
           int64_t count = 1) {
    if (status_.ok())
      status_ = SetAttribute(descriptor, name, type, count, values);
  }
  void Set(const Descriptor& descriptor, cudnnBackendAttributeName_t name,
           Raw value) {
    Set(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &value);
  }
  // Finalizes and keeps it.
  Raw Keep(Descriptor descriptor, absl::string_view what) {
    if (status_.ok()) status_ = Finalize(descriptor, what);
    parts_.push_back(std::move(descriptor));
    return RawOf(parts_.back());
  }
  void AddOperation(Descriptor operation, absl::string_view what) {
    operations_.push_back(Keep(std::move(operation), what));
  }

  Raw AddTensor(cudnnDataType_t type, Sizes sizes, Sizes strides,
                TensorOptions options);
  Raw Inner(cudnnDataType_t type, Sizes sizes, Sizes strides) {
    return AddTensor(type, std::move(sizes), std::move(strides), {});
  }
  // [batch, heads, length, width] of q, k, v or their like.
  Raw Activation(Tensor name);
  // [batch, heads, width, length]: the same, transposed.
  Raw Transposed(Tensor name);
  // [batch, heads, length, length], or with the last two transposed.
  Raw Scores(cudnnDataType_t type = CUDNN_DATA_FLOAT, bool transposed = false);
  // [batch, heads, length, 1]
  Raw Rows(std::optional<Tensor> name = std::nullopt);
  Raw HostScalar(Tensor name) {
    return AddTensor(CUDNN_DATA_FLOAT, {1, 1, 1, 1}, {1, 1, 1, 1},
                     {.name = name, .in_host_memory = true});
  }
  int64_t HeadsOf(Tensor name) const {
    return OfKeys(name) ? shape_.kv_heads : shape_.heads;
  }
  Sizes FullSizes() const {
    return {shape_.batch, shape_.heads, shape_.length, shape_.width};
  }
  Sizes FullStrides() const {
    const int64_t rows = shape_.length * shape_.width;
    return {shape_.heads * rows, rows, shape_.width, 1};
  }

  void Matmul(Raw a, Raw b, Raw c);
  void Pointwise(cudnnPointwiseMode_t mode, Raw x, Raw y, Raw b = nullptr,
                 Raw t = nullptr, int64_t axis = -1,
                 cudnnDataType_t type = CUDNN_DATA_FLOAT);
  void Reduce(cudnnReduceTensorOp_t op, Raw x, Raw y);
  void Reshape(Raw x, Raw y);
  Raw Masked(Raw scores);
  // a b summed over the query heads of each key head.
  void OverGroup(Raw a, Raw b, Tensor result);

  const Shape& shape_;
  absl::Status status_;
  std::vector<Descriptor> parts_;
  std::vector<Raw> operations_;
  int64_t next_name_ = 100;
};

Raw Builder::AddTensor(cudnnDataType_t type, Sizes sizes, Sizes strides,
                       TensorOptions options) {
  Descriptor tensor = Make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const int64_t alignment = 16;
  const bool inner = options.name < 0;
  const int64_t name = inner ? next_name_++ : options.name;
  Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  Set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, sizes.data(),
      sizes.size());
  Set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, strides.data(),
      strides.size());
  Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, &name);
  Set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, &alignment);
  Set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, &inner);
  Set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN,
      &options.in_host_memory);
  return Keep(std::move(tensor), "a tensor");
}

Raw Builder::Activation(Tensor name) {
  const auto& [batch, row, head] = shape_.strides[name];
  return AddTensor(CUDNN_DATA_BFLOAT16,
                   {shape_.batch, HeadsOf(name), shape_.length, shape_.width},
                   {batch, head, row, 1}, {.name = name});
}

Raw Builder::Transposed(Tensor name) {
  const auto& [batch, row, head] = shape_.strides[name];
  return AddTensor(CUDNN_DATA_BFLOAT16,
                   {shape_.batch, HeadsOf(name), shape_.width, shape_.length},
                   {batch, head, 1, row}, {.name = name});
}

Raw Builder::Scores(cudnnDataType_t type, bool transposed) {
  const int64_t t = shape_.length;
  return Inner(
      type, {shape_.batch, shape_.heads, t, t},
      {shape_.heads * t * t, t * t, transposed ? 1 : t, transposed ? t : 1});
}

Raw Builder::Rows(std::optional<Tensor> name) {
  const int64_t t = shape_.length;
  const int64_t batch =
      name == kLse ? shape_.lse_batch_stride : shape_.heads * t;
  TensorOptions options;
  if (name.has_value()) options.name = *name;
  return AddTensor(CUDNN_DATA_FLOAT, {shape_.batch, shape_.heads, t, 1},
                   {batch, t, 1, 1}, options);
}

void Builder::Matmul(Raw a, Raw b, Raw c) {
  Descriptor product = Make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Set(product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  const Raw kind = Keep(std::move(product), "a product");
  Descriptor operation = Make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, kind);
  AddOperation(std::move(operation), "a product");
}

void Builder::Pointwise(cudnnPointwiseMode_t mode, Raw x, Raw y, Raw b, Raw t,
                        int64_t axis, cudnnDataType_t type) {
  Descriptor pointwise = Make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  Set(pointwise, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, &mode);
  Set(pointwise, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, &type);
  if (axis >= 0)
    Set(pointwise, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, &axis);
  const Raw kind = Keep(std::move(pointwise), "a pointwise operation");
  Descriptor operation = Make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b != nullptr) Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  if (t != nullptr) Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  AddOperation(std::move(operation), "a pointwise operation");
}

void Builder::Reduce(cudnnReduceTensorOp_t op, Raw x, Raw y) {
  Descriptor reduction = Make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  const cudnnDataType_t type = CUDNN_DATA_FLOAT;
  Set(reduction, CUDNN_ATTR_REDUCTION_OPERATOR,
      CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, &op);
  Set(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, &type);
  const Raw kind = Keep(std::move(reduction), "a reduction");
  Descriptor operation = Make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, kind);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
  AddOperation(std::move(operation), "a reduction");
}

void Builder::Reshape(Raw x, Raw y) {
  Descriptor operation = Make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
  Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
  AddOperation(std::move(operation), "a transposition");
}

// Minus infinity where the key is behind the query.
Raw Builder::Masked(Raw scores) {
  if (!shape_.causal) return scores;
  const Raw query = Scores(CUDNN_DATA_INT32), key = Scores(CUDNN_DATA_INT32);
  const Raw visible = Scores(CUDNN_DATA_BOOLEAN), masked = Scores();
  Pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, query, nullptr, nullptr, 2);
  Pointwise(CUDNN_POINTWISE_GEN_INDEX, scores, key, nullptr, nullptr, 3);
  Pointwise(CUDNN_POINTWISE_CMP_GE, query, visible, key, nullptr, -1,
            CUDNN_DATA_BOOLEAN);
  Pointwise(CUDNN_POINTWISE_BINARY_SELECT, scores, masked,
            HostScalar(kMinusInfinity), visible);
  return masked;
}

void Builder::AddForward() {
  const Raw raw = Scores(), scaled = Scores();
  Matmul(Activation(kQuery), Transposed(kKey), raw);
  Pointwise(CUDNN_POINTWISE_MUL, raw, scaled, HostScalar(kScale));
  const Raw scores = Masked(scaled);
  const Raw largest = Rows(), sum = Rows(), log = Rows();
  const Raw shifted = Scores(), exponentials = Scores();
  const Raw probabilities = Scores(CUDNN_DATA_BFLOAT16);
  Reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  Pointwise(CUDNN_POINTWISE_SUB, scores, shifted, largest);
  Pointwise(CUDNN_POINTWISE_EXP, shifted, exponentials);
  Reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
  Pointwise(CUDNN_POINTWISE_LOG, sum, log);
  Pointwise(CUDNN_POINTWISE_ADD, largest, Rows(kLse), log);
  Pointwise(CUDNN_POINTWISE_DIV, exponentials, probabilities, sum);
  Matmul(probabilities, Activation(kValue), Activation(kOut));
}

void Builder::OverGroup(Raw a, Raw b, Tensor result) {
  if (shape_.heads == shape_.kv_heads) return Matmul(a, b, Activation(result));
  const Raw by_head = Inner(CUDNN_DATA_BFLOAT16, FullSizes(), FullStrides());
  Matmul(a, b, by_head);
  Reduce(CUDNN_REDUCE_TENSOR_ADD, by_head, Activation(result));
}

void Builder::AddGradient() {
  const Raw query = Activation(kQuery), key = Transposed(kKey);
  const Raw out_gradient = Activation(kOutGradient);
  const Raw scale = HostScalar(kScale);
  const int64_t row = shape_.heads * shape_.width;
  const Raw products =
      Inner(CUDNN_DATA_FLOAT, FullSizes(),
            {shape_.length * row, shape_.length * shape_.width, row, 1});
  const Raw unscaled_sums = Rows(), row_sums = Rows(kRowSums);
  Pointwise(CUDNN_POINTWISE_MUL, out_gradient, products, Activation(kOut));
  Reduce(CUDNN_REDUCE_TENSOR_ADD, products, unscaled_sums);
  Pointwise(CUDNN_POINTWISE_MUL, unscaled_sums, row_sums, HostScalar(kOne));

  const Raw raw = Scores(), scaled = Scores(), shifted = Scores();
  const Raw probabilities = Scores();
  const Raw transposed = Scores(CUDNN_DATA_BFLOAT16, true);
  Matmul(query, key, raw);
  Pointwise(CUDNN_POINTWISE_MUL, raw, scaled, scale);
  Pointwise(CUDNN_POINTWISE_SUB, scaled, shifted, Rows(kLse));
  Pointwise(CUDNN_POINTWISE_EXP, Masked(shifted), probabilities);
  Reshape(probabilities, transposed);
  OverGroup(transposed, out_gradient, kValueGradient);

  const Raw by_value = Scores(), less_sums = Scores(), weighted = Scores();
  const Raw score_gradient = Scores();
  const Raw transposed_gradient = Scores(CUDNN_DATA_BFLOAT16, true);
  Matmul(out_gradient, Transposed(kValue), by_value);
  Pointwise(CUDNN_POINTWISE_SUB, by_value, less_sums, row_sums);
  Pointwise(CUDNN_POINTWISE_MUL, less_sums, weighted, probabilities);
  Pointwise(CUDNN_POINTWISE_MUL, weighted, score_gradient, scale);
  Reshape(score_gradient, transposed_gradient);
  OverGroup(transposed_gradient, query, kKeyGradient);

  const int64_t kv_row = shape_.kv_heads * shape_.width;
  const Raw plain_key =
      Inner(CUDNN_DATA_FLOAT,
            {shape_.batch, shape_.kv_heads, shape_.length, shape_.width},
            {shape_.length * kv_row, shape_.width, kv_row, 1});
  Reshape(key, plain_key);
  if (!shape_.fast)
    return Matmul(score_gradient, plain_key, Activation(kQueryGradient));
  const Raw query_sums = AddTensor(CUDNN_DATA_FLOAT, FullSizes(), FullStrides(),
                                   {.name = kQuerySums});
  Matmul(score_gradient, plain_key, query_sums);
  Pointwise(CUDNN_POINTWISE_IDENTITY, query_sums, Activation(kQueryGradient));
}

absl::StatusOr<Descriptor> Builder::Finish(cudnnHandle_t handle) {
  Descriptor graph = Make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  Set(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      operations_.data(), operations_.size());
  if (handle != nullptr)
    Set(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, &handle);
  SG_RETURN_IF_ERROR(status_);
  SG_RETURN_IF_ERROR(Finalize(graph, "the graph"));
  return graph;
}

absl::Status Get(const Descriptor& descriptor, cudnnBackendAttributeName_t name,
                 cudnnBackendAttributeType_t type, int64_t requested,
                 int64_t* count, void* values) {
  return CudnnStatus(cudnnBackendGetAttribute(RawOf(descriptor), name, type,
                                              requested, count, values),
                     "cudnnBackendGetAttribute");
}

std::string LastWords() {
  char text[2048] = {};
  cudnnGetLastErrorString(text, sizeof(text));
  return text;
}

// The configurations for a graph, best first.
absl::StatusOr<std::vector<Descriptor>> Configurations(
    const Descriptor& graph, const Descriptor& device) {
  SG_ASSIGN_OR_RETURN(const Descriptor heuristics,
                      MakeDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  const Raw raw_graph = RawOf(graph), raw_device = RawOf(device);
  SG_RETURN_IF_ERROR(
      SetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw_graph));
  SG_RETURN_IF_ERROR(SetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE,
                                  CUDNN_TYPE_HEUR_MODE, 1, &mode));
  if (device != nullptr) {
    SG_RETURN_IF_ERROR(
        SetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw_device));
  }
  SG_RETURN_IF_ERROR(Finalize(heuristics, "the heuristics"));
  int64_t most = 0, count = 0;
  SG_RETURN_IF_ERROR(Get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &most, nullptr));
  std::vector<Descriptor> found;
  std::vector<Raw> raw;
  for (int64_t i = 0; i < most; ++i) {
    SG_ASSIGN_OR_RETURN(Descriptor configuration,
                        MakeDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(RawOf(configuration));
    found.push_back(std::move(configuration));
  }
  SG_RETURN_IF_ERROR(Get(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                         CUDNN_TYPE_BACKEND_DESCRIPTOR, most, &count,
                         raw.data()));
  if (count == 0)
    return absl::UnimplementedError(
        absl::StrCat("cuDNN has no engine for it: ", LastWords()));
  found.resize(count);
  return found;
}

// What follows `key` in a plan's JSON.
std::string After(const std::string& json, absl::string_view key,
                  absl::string_view end) {
  const size_t begin = json.find(std::string(key));
  if (begin == std::string::npos) return "";
  const size_t from = begin + key.size();
  return json.substr(from, json.find_first_of(std::string(end), from) - from);
}

absl::StatusOr<Plan> PlanOf(const Descriptor& configuration,
                            cudnnHandle_t handle) {
  Plan plan;
  SG_ASSIGN_OR_RETURN(plan.descriptor,
                      MakeDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
  const Raw raw = RawOf(configuration);
  SG_RETURN_IF_ERROR(SetAttribute(plan.descriptor,
                                  CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw));
  if (handle != nullptr) {
    SG_RETURN_IF_ERROR(SetAttribute(plan.descriptor,
                                    CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                    CUDNN_TYPE_HANDLE, 1, &handle));
  }
  SG_RETURN_IF_ERROR(Finalize(plan.descriptor, "a plan"));
  int64_t count = 0;
  SG_RETURN_IF_ERROR(Get(plan.descriptor,
                         CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                         CUDNN_TYPE_INT64, 1, &count, &plan.workspace));
  SG_RETURN_IF_ERROR(Get(plan.descriptor,
                         CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                         CUDNN_TYPE_CHAR, 0, &count, nullptr));
  std::string json(count, ' ');
  SG_RETURN_IF_ERROR(Get(plan.descriptor,
                         CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
                         CUDNN_TYPE_CHAR, count, &count, json.data()));
  plan.engine = std::atoll(After(json, "\"engineId\":", ",}").c_str());
  plan.kernel = After(json, "cudnn_generated_fort_native_", "\"");
  return plan;
}

}  // namespace

absl::Span<const Place> Places(bool gradient) {
  static constexpr Place forward[] = {{kQuery, false, 0},
                                      {kKey, false, 1},
                                      {kValue, false, 2},
                                      {kOut, true, 0}};
  static constexpr Place backward[] = {
      {kOutGradient, false, 0}, {kQuery, false, 1},
      {kKey, false, 2},         {kValue, false, 3},
      {kOut, false, 4},         {kQueryGradient, true, 0},
      {kKeyGradient, true, 1},  {kValueGradient, true, 2}};
  if (gradient) return backward;
  return forward;
}

Shape ShapeOf(const AttentionConfig& config, const CudnnCalls& calls,
              absl::Span<const TensorType> operands,
              absl::Span<const TensorType> results) {
  const bool gradient = results.size() == 3;
  Shape shape = {.batch = calls.sequences,
                 .heads = calls.kv_heads * config.heads_per_group(),
                 .kv_heads = calls.kv_heads,
                 .length = config.queries,
                 .width = config.width,
                 .causal = config.causal,
                 .gradient = gradient,
                 .fast = gradient && config.fast};
  shape.lse_batch_stride = config.heads * config.queries;
  for (const Place& place : Places(gradient)) {
    const TensorType& type =
        place.result ? results[place.index] : operands[place.index];
    for (int d = 0; d < 3; ++d) shape.strides[place.name][d] = type.strides[d];
  }
  return shape;
}

absl::Status CudnnStatus(cudnnStatus_t status, absl::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  // All of 3xxx: not supported.
  const bool unsupported = status / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
  return absl::Status(
      unsupported ? absl::StatusCode::kUnimplemented
                  : absl::StatusCode::kInternal,
      absl::StrCat(what, ": cuDNN error ", static_cast<int>(status), " (",
                   cudnnGetErrorString(status), "): ", LastWords()));
}

absl::Status SetAttribute(const Descriptor& descriptor,
                          cudnnBackendAttributeName_t name,
                          cudnnBackendAttributeType_t type, int64_t count,
                          const void* values) {
  return CudnnStatus(
      cudnnBackendSetAttribute(RawOf(descriptor), name, type, count, values),
      absl::StrCat("cudnnBackendSetAttribute ", static_cast<int>(name)));
}

absl::StatusOr<Descriptor> MakeDescriptor(cudnnBackendDescriptorType_t type) {
  Raw raw = nullptr;
  SG_RETURN_IF_ERROR(CudnnStatus(cudnnBackendCreateDescriptor(type, &raw),
                                 "cudnnBackendCreateDescriptor"));
  return Descriptor(raw);
}

absl::Status Finalize(const Descriptor& descriptor, absl::string_view what) {
  return CudnnStatus(cudnnBackendFinalize(RawOf(descriptor)),
                     absl::StrCat("cudnnBackendFinalize of ", what));
}

absl::StatusOr<Plan> MakePlan(const Shape& shape, cudnnHandle_t handle,
                              absl::string_view device, int64_t max_workspace) {
  Descriptor properties;
  if (!device.empty()) {
    SG_ASSIGN_OR_RETURN(properties,
                        MakeDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
    SG_RETURN_IF_ERROR(SetAttribute(
        properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
        static_cast<int64_t>(device.size()), device.data()));
    SG_RETURN_IF_ERROR(Finalize(properties, "a device's properties"));
  }
  Builder builder(shape);
  if (shape.gradient) {
    builder.AddGradient();
  } else {
    builder.AddForward();
  }
  SG_ASSIGN_OR_RETURN(Descriptor graph, builder.Finish(handle));
  SG_ASSIGN_OR_RETURN(std::vector<Descriptor> configurations,
                      Configurations(graph, properties));
  absl::Status refused;
  for (Descriptor& configuration : configurations) {
    absl::StatusOr<Plan> plan = PlanOf(configuration, handle);
    if (plan.ok() && plan->workspace <= max_workspace) {
      plan->parts = builder.TakeParts();
      plan->parts.push_back(std::move(graph));
      plan->parts.push_back(std::move(configuration));
      return plan;
    }
    if (!refused.ok()) continue;
    refused = plan.ok()
                  ? absl::UnimplementedError(absl::StrCat(
                        "cuDNN's engine takes ", plan->workspace,
                        " bytes of workspace, the plan has ", max_workspace))
                  : absl::UnimplementedError(plan.status().message());
  }
  return refused;
}

}  // namespace shardgraph::cudnn
