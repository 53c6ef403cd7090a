#include "kernels/attention/attention.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/embedding/embedding.h"
#include "kernels/infer.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Checks q, k, v at operands[first ...] and the optional operands at
// `next` ...; appends their names to `names`.
absl::Status CheckAttention(const Attributes& attributes,
                            absl::Span<const TensorType> operands, int first,
                            std::vector<absl::string_view> names) {
  size_t next = names.size();
  const bool has_rotary = attributes.Int("has_rotary") != 0;
  const bool has_offset = attributes.Int("has_offset") != 0;
  const bool has_documents = attributes.Int("has_documents") != 0;
  const double dropout = attributes.Double("dropout");
  if (has_rotary) names.push_back("positions");
  if (has_offset) names.push_back("query_offset");
  if (has_documents) names.push_back("documents");
  if (dropout > 0) {
    names.push_back("sequence_ids");
    names.push_back("run_step");
  }
  SG_RETURN_IF_ERROR(CheckCount(operands, names));
  const TensorType& q = operands[first];
  const TensorType& k = operands[first + 1];
  const TensorType& v = operands[first + 2];
  SG_RETURN_IF_ERROR(CheckFloating(q, "q"));
  SG_RETURN_IF_ERROR(CheckRank(q, "q", 4, 4));
  SG_RETURN_IF_ERROR(
      CheckType(k, "k", q.dtype, {q.dim(0), kAnySize, kAnySize, q.dim(3)}));
  SG_RETURN_IF_ERROR(CheckType(v, "v", q.dtype, k.shape));
  if (k.dim(2) == 0 || q.dim(2) % k.dim(2) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("q has ", q.dim(2), " heads and k has ", k.dim(2),
                     "; the former must be a multiple of the latter"));
  }
  const bool causal = attributes.Int("causal") != 0;
  if ((causal || has_documents) && !has_offset && q.dim(1) != k.dim(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention of ", q.dim(1), " queries over ", k.dim(1),
        " keys, causal or with documents, needs query_offset; without it the "
        "lengths must be equal"));
  }
  if (!(dropout >= 0 && dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute dropout is ", dropout, ", must be in [0, 1)"));
  }
  if (has_rotary) {
    SG_RETURN_IF_ERROR(CheckRotaryAttributes(attributes));
    if (q.dim(3) % 2 != 0 || q.dim(1) != k.dim(1) || has_offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "q is ", q.ToString(), " and k is ", k.ToString(),
          has_offset ? " with query_offset" : "",
          "; has_rotary takes heads of even width, as many queries as keys and "
          "no query_offset"));
    }
    SG_RETURN_IF_ERROR(CheckType(operands[next++], "positions", DType::kI32,
                                 {q.dim(0) * q.dim(1)}));
  }
  if (has_offset)
    SG_RETURN_IF_ERROR(
        CheckScalar(operands[next++], "query_offset", DType::kI64));
  if (has_documents)
    SG_RETURN_IF_ERROR(CheckType(operands[next++], "documents", DType::kI32,
                                 {k.dim(0), k.dim(1)}));
  if (dropout > 0) {
    SG_RETURN_IF_ERROR(
        CheckType(operands[next++], "sequence_ids", DType::kI64, {q.dim(0)}));
    SG_RETURN_IF_ERROR(CheckScalar(operands[next++], "run_step", DType::kI64));
  }
  return absl::OkStatus();
}

TensorType LseType(const TensorType& q) {
  return TensorType(AccumulationDType(q.dtype), {q.dim(0), q.dim(2), q.dim(1)});
}

absl::Status InferAttention(const Attributes& attributes,
                            absl::Span<const TensorType> operands,
                            std::vector<TensorType>* results) {
  SG_RETURN_IF_ERROR(CheckAttention(attributes, operands, 0, {"q", "k", "v"}));
  const TensorType& q = operands[0];
  results->push_back(TensorType(q.dtype, q.shape));
  results->push_back(LseType(q));
  return absl::OkStatus();
}

absl::Status InferAttentionGradient(const Attributes& attributes,
                                    absl::Span<const TensorType> operands,
                                    std::vector<TensorType>* results) {
  if (attributes.Int("has_offset") != 0) {
    return absl::InvalidArgumentError(
        "has_offset is 1; the gradient is defined for training, without a "
        "query offset");
  }
  SG_RETURN_IF_ERROR(CheckAttention(attributes, operands, 1,
                                    {"dout", "q", "k", "v", "out", "lse"}));
  const TensorType& q = operands[1];
  SG_RETURN_IF_ERROR(CheckType(operands[0], "dout", q.dtype, q.shape));
  SG_RETURN_IF_ERROR(CheckType(operands[4], "out", q.dtype, q.shape));
  const TensorType lse = LseType(q);
  SG_RETURN_IF_ERROR(CheckType(operands[5], "lse", lse.dtype, lse.shape));
  for (int i = 1; i <= 3; ++i)
    results->push_back(TensorType(operands[i].dtype, operands[i].shape));
  return absl::OkStatus();
}

// `products` of size T x S x D, `pointwise` operations per score.
OpCost Cost(const Attributes& attributes, const TensorType& q,
            const TensorType& k, int products, int pointwise) {
  const AttentionConfig config(attributes, q, k);
  double scores = static_cast<double>(config.batch) * config.heads *
                  config.queries * config.keys;
  if (config.causal && !config.has_offset) scores /= 2;
  OpCost cost;
  cost.matmul_flops = 2.0 * products * scores * config.width;
  cost.pointwise_flops = pointwise * scores;
  return cost;
}

OpCost CostOfAttention(const Attributes& attributes,
                       absl::Span<const TensorType> operands,
                       absl::Span<const TensorType> results) {
  OpCost cost = Cost(attributes, operands[0], operands[1], 2, 5);
  cost.bytes = CostOfMemory(operands, results).bytes;
  return cost;
}

OpCost CostOfAttentionGradient(const Attributes& attributes,
                               absl::Span<const TensorType> operands,
                               absl::Span<const TensorType> results) {
  OpCost cost = Cost(attributes, operands[1], operands[2], 5, 7);
  cost.bytes = CostOfMemory(operands, results).bytes;
  return cost;
}

}  // namespace

AttentionConfig::AttentionConfig(const Attributes& attributes,
                                 const TensorType& q, const TensorType& k)
    : batch(q.dim(0)),
      queries(q.dim(1)),
      keys(k.dim(1)),
      heads(q.dim(2)),
      kv_heads(k.dim(2)),
      width(q.dim(3)),
      scale(attributes.Double("scale", 1 / std::sqrt(width))),
      causal(attributes.Int("causal") != 0),
      has_rotary(attributes.Int("has_rotary") != 0),
      has_offset(attributes.Int("has_offset") != 0),
      has_documents(attributes.Int("has_documents") != 0),
      dropout(attributes.Double("dropout")),
      seed(attributes.Int("seed")),
      key(attributes.Int("key")),
      fast(attributes.Int("fast") != 0) {}

absl::Span<const OpDef* const> AttentionOps() {
  static const OpDef attention = {.name = "attention",
                                  .infer = InferAttention,
                                  .cost = CostOfAttention,
                                  .incidental_results = 0b11,
                                  .strided_operands = 0b111};
  static const OpDef attention_gradient = {.name = "attention_gradient",
                                           .infer = InferAttentionGradient,
                                           .cost = CostOfAttentionGradient,
                                           .incidental_results = 0b111,
                                           .strided_operands = 0b1110,
                                           .strided_results = 0b111};
  static const OpDef* const ops[] = {&attention, &attention_gradient};
  return ops;
}

}  // namespace shardgraph
