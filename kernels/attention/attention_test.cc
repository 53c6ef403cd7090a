#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {

namespace {

const OpDef* Attention() { return AttentionOps()[0]; }
const OpDef* AttentionGradient() { return AttentionOps()[1]; }

struct Shapes {
  DType dtype = DType::kF32;
  int64_t batch = 1;
  int64_t queries = 1;
  int64_t keys = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t width = 1;
  bool causal = false;
  int64_t offset = -1;  // -1: no operand
  std::vector<double> documents;
  double dropout = 0;
  double scale = 0;     // 0: the default
  bool packed = false;  // q, k and v are views of wider rows
  bool rotary = false;
  double range = 1;  // of q and k
};

TensorType HeadsType(const Shapes& s, int64_t length, int64_t heads) {
  const Dims shape = {s.batch, length, heads, s.width};
  if (!s.packed) return TensorType(s.dtype, shape);
  const int64_t row = (heads + 1) * s.width + 3;
  return TensorType(s.dtype, shape, {length * row, row, s.width, 1});
}

OperandCase Drawn(TensorType type, double range, uint64_t seed) {
  return OperandCase(type,
                     UniformValues(type.num_elements(), -range, range, seed));
}

OpCase Forward(const Shapes& s) {
  OpCase op_case;
  op_case.op = Attention();
  op_case.attributes.SetInt("causal", s.causal);
  if (s.scale != 0) op_case.attributes.SetDouble("scale", s.scale);
  op_case.operands = {Drawn(HeadsType(s, s.queries, s.heads), s.range, 1),
                      Drawn(HeadsType(s, s.keys, s.kv_heads), s.range, 2),
                      Drawn(HeadsType(s, s.keys, s.kv_heads), 1, 3)};
  if (s.rotary) {
    op_case.attributes.SetInt("has_rotary", 1).SetDouble("theta", 50);
    std::vector<double> positions;
    for (int64_t n = 0; n < s.batch * s.queries; ++n)
      positions.push_back(7 + n % s.queries + 13 * (n / s.queries));
    op_case.operands.push_back(
        OperandCase(TensorType(DType::kI32, {s.batch * s.queries}), positions));
  }
  if (s.offset >= 0) {
    op_case.attributes.SetInt("has_offset", 1);
    op_case.operands.push_back(
        OperandCase(TensorType(DType::kI64, {}),
                    std::vector<double>{static_cast<double>(s.offset)}));
  }
  if (!s.documents.empty()) {
    op_case.attributes.SetInt("has_documents", 1);
    op_case.operands.push_back(
        OperandCase(TensorType(DType::kI32, {s.batch, s.keys}), s.documents));
  }
  if (s.dropout > 0) {
    op_case.attributes.SetDouble("dropout", s.dropout)
        .SetInt("seed", 42)
        .SetInt("key", -7);
    std::vector<double> ids;
    for (int64_t b = 0; b < s.batch; ++b) ids.push_back(1000 + 3 * b);
    op_case.operands.push_back(
        OperandCase(TensorType(DType::kI64, {s.batch}), ids));
    op_case.operands.push_back(
        OperandCase(TensorType(DType::kI64, {}), std::vector<double>{5}));
  }
  op_case.magnitude = 1;
  // Angles are FP32 numbers, and so may what they turn be rounded.
  op_case.inner_rounding = s.dtype == DType::kBF16 || s.rotary;
  return op_case;
}

OpCase Backward(const Shapes& s) {
  const OpCase forward = Forward(s);
  const std::vector<ResultValues> results =
      Evaluate(forward, AttentionReferenceKernels(), true);
  OpCase op_case;
  op_case.op = AttentionGradient();
  op_case.attributes = forward.attributes;
  const TensorType out(s.dtype, {s.batch, s.queries, s.heads, s.width});
  op_case.operands = {
      Drawn(out, 1, 4),
      forward.operands[0],
      forward.operands[1],
      forward.operands[2],
      OperandCase(out, results[0]),
      OperandCase(TensorType(s.dtype == DType::kF64 ? DType::kF64 : DType::kF32,
                             {s.batch, s.heads, s.queries}),
                  results[1])};
  for (size_t i = 3; i < forward.operands.size(); ++i)
    op_case.operands.push_back(forward.operands[i]);
  if (s.packed) {
    for (int i = 1; i <= 3; ++i)
      op_case.result_strides.push_back(op_case.operands[i].type.strides);
  }
  op_case.magnitude = s.width;
  op_case.inner_rounding = forward.inner_rounding;
  return op_case;
}

std::vector<Shapes> TrainingShapes() {
  std::vector<double> documents;  // of 2 x 70: three of odd lengths each
  for (int i = 0; i < 140; ++i) documents.push_back(i % 70 / 27);
  return {
      {.batch = 0, .queries = 3, .keys = 3, .causal = true},
      {.queries = 0, .keys = 3, .width = 4},
      {.queries = 1, .keys = 1, .causal = true},
      {.batch = 2,
       .queries = 5,
       .keys = 5,
       .heads = 4,
       .kv_heads = 2,
       .width = 8,
       .causal = true},
      {.queries = 70,
       .keys = 70,
       .heads = 2,
       .kv_heads = 1,
       .width = 16,
       .causal = true,
       .packed = true},
      {.queries = 130,
       .keys = 130,
       .heads = 2,
       .kv_heads = 2,
       .width = 33,
       .causal = true,
       .range = 6},
      {.queries = 3,
       .keys = 67,
       .heads = 3,
       .kv_heads = 1,
       .width = 5,
       .scale = -0.5},
      {.queries = 96,
       .keys = 96,
       .heads = 1,
       .kv_heads = 1,
       .width = 64,
       .packed = true,
       .range = 4},
      {.queries = 388,
       .keys = 388,
       .heads = 2,
       .kv_heads = 1,
       .width = 18,
       .causal = true,
       .packed = true},
      {.queries = 40,
       .keys = 40,
       .heads = 2,
       .kv_heads = 1,
       .width = 96,
       .causal = true},
      {.queries = 20,
       .keys = 20,
       .heads = 1,
       .kv_heads = 1,
       .width = 200,
       .packed = true},
      {.batch = 2,
       .queries = 70,
       .keys = 70,
       .heads = 2,
       .kv_heads = 2,
       .width = 6,
       .causal = true,
       .documents = documents},
      {.batch = 2,
       .queries = 9,
       .keys = 9,
       .heads = 4,
       .kv_heads = 2,
       .width = 8,
       .causal = true,
       .dropout = 0.25,
       .scale = 1.5},
      {.batch = 2,
       .queries = 70,
       .keys = 70,
       .heads = 2,
       .kv_heads = 1,
       .width = 4,
       .documents = documents,
       .dropout = 0.5,
       .packed = true},
      {.batch = 2,
       .queries = 5,
       .keys = 5,
       .heads = 4,
       .kv_heads = 2,
       .width = 2,
       .causal = true,
       .rotary = true},
      {.batch = 2,
       .queries = 200,
       .keys = 200,
       .heads = 2,
       .kv_heads = 1,
       .width = 70,
       .causal = true,
       .packed = true,
       .rotary = true},
      {.batch = 2,
       .queries = 70,
       .keys = 70,
       .heads = 2,
       .kv_heads = 2,
       .width = 18,
       .documents = documents,
       .dropout = 0.25,
       .rotary = true},
  };
}

// With a KV cache: queries stand behind the keys of the past.
std::vector<Shapes> InferenceShapes() {
  std::vector<double> documents(70, 1.0);
  for (int i = 0; i < 20; ++i) documents[i] = 0;
  return {
      {.batch = 2,
       .queries = 1,
       .keys = 70,
       .heads = 4,
       .kv_heads = 2,
       .width = 8,
       .causal = true,
       .offset = 40},
      {.queries = 5,
       .keys = 130,
       .heads = 2,
       .kv_heads = 2,
       .width = 9,
       .causal = true,
       .offset = 66,
       .packed = true},
      {.queries = 3,
       .keys = 70,
       .heads = 2,
       .kv_heads = 2,
       .width = 4,
       .causal = true,
       .offset = 18,
       .documents = documents},
      {.queries = 70,
       .keys = 90,
       .heads = 1,
       .kv_heads = 1,
       .width = 4,
       .causal = true,
       .offset = 0},
  };
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (Shapes shapes : TrainingShapes()) {
      shapes.dtype = dtype;
      cases.push_back(Forward(shapes));
      cases.push_back(Backward(shapes));
    }
    for (Shapes shapes : InferenceShapes()) {
      shapes.dtype = dtype;
      cases.push_back(Forward(shapes));
    }
  }
  Shapes wide = TrainingShapes()[3];
  wide.dtype = DType::kF64;
  cases.push_back(Forward(wide));
  cases.push_back(Backward(wide));
  return cases;
}

std::vector<TestKernels> Backends() {
  return {AttentionReferenceKernels(), AttentionCpuKernels(),
          OnCuda(AttentionCudaKernels())};
}

TEST(Attention, Reference) {
  CheckKernels(Cases(), AttentionReferenceKernels(),
               AttentionReferenceKernels());
}

TEST(Attention, Cpu) {
  CheckCpuKernels(Cases(), AttentionReferenceKernels(), AttentionCpuKernels());
}

TEST(Attention, Cuda) {
  std::vector<OpCase> cases = Cases();
  std::erase_if(cases, [](const OpCase& op_case) {
    return op_case.attributes.Int("has_rotary") != 0;  // kernels/rotary_apart.h
  });
  CheckCudaKernels(cases, AttentionReferenceKernels(), AttentionCudaKernels());
}

TEST(Attention, EveryOpHasCasesAndKernels) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(AttentionOps()));
  EXPECT_EQ(CoveredOps(AttentionReferenceKernels()), NamesOf(AttentionOps()));
  EXPECT_EQ(CoveredOps(AttentionCpuKernels()), NamesOf(AttentionOps()));
  EXPECT_EQ(CoveredOps(AttentionCudaKernels()), NamesOf(AttentionOps()));
}

TEST(Attention, ReferenceByHand) {
  // Two queries of width 1; scores 0 and ln 3 for the second.
  OpCase op_case =
      Forward({.queries = 2, .keys = 2, .causal = true, .scale = 2});
  op_case.operands[0].values = {5, std::log(3.0) / 2};
  op_case.operands[1].values = {0, 1};
  op_case.operands[2].values = {8, 4};
  op_case.operands[0].type.dtype = op_case.operands[1].type.dtype =
      op_case.operands[2].type.dtype = DType::kF64;
  const auto results = Evaluate(op_case, AttentionReferenceKernels(), true);
  EXPECT_EQ(results[0][0], 8);
  EXPECT_NEAR(results[0][1], 8 * 0.25 + 4 * 0.75, 1e-12);
  EXPECT_EQ(results[1][0], 0);
  EXPECT_NEAR(results[1][1], std::log(4.0), 1e-12);
}

TEST(Attention, DropoutKeepsTheMeanAndDependsOnTheStep) {
  Shapes shapes = {.queries = 64,
                   .keys = 64,
                   .heads = 4,
                   .kv_heads = 4,
                   .dropout = 0.25,
                   .range = 0.01};
  OpCase op_case = Forward(shapes);
  op_case.operands[2].values.assign(64 * 4, 1.0);
  const auto first = Evaluate(op_case, AttentionReferenceKernels(), true)[0];
  double mean = 0;
  for (const double value : first) mean += value / first.size();
  // 16,384 probabilities of 1 / 64: the mean's standard deviation is 0.0045.
  EXPECT_NEAR(mean, 1, 0.02);
  op_case.operands[4].values = {6};
  EXPECT_NE(Evaluate(op_case, AttentionReferenceKernels(), true)[0], first);
}

TEST(Attention, AQueryThatSeesNoKeyIsZero) {
  Shapes shapes = {
      .queries = 2, .keys = 0, .heads = 1, .kv_heads = 1, .width = 3};
  for (const TestKernels& kernels : Backends()) {
    const auto results = Evaluate(Forward(shapes), kernels, false);
    EXPECT_EQ(results[0], ResultValues(6, 0.0));
    EXPECT_EQ(results[1],
              ResultValues(2, -std::numeric_limits<double>::infinity()));
  }
}

// NaN in one element of q, k or v reaches out, lse and the gradients; queries
// of earlier blocks stay finite.
TEST(Attention, NanIsNotTakenForAKeyOutOfSight) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const int64_t length = 130, width = 4, bad = 128;
  const Shapes shapes = {.queries = length,
                         .keys = length,
                         .heads = 1,
                         .kv_heads = 1,
                         .width = width,
                         .causal = true};
  const auto count_nan = [](const ResultValues& values, int64_t begin,
                            int64_t end) {
    return std::count_if(values.begin() + begin, values.begin() + end,
                         [](double x) { return std::isnan(x); });
  };
  for (const TestKernels& kernels : Backends()) {
    for (int operand = 0; operand < 3; ++operand) {
      SCOPED_TRACE(operand);
      OpCase forward = Forward(shapes);
      forward.operands[operand].values[bad * width] = nan;
      const auto results = Evaluate(forward, kernels, false);
      // A query of its own; a key or value also for the query behind it.
      EXPECT_EQ(count_nan(results[0], bad * width, length * width),
                operand == 0   ? width
                : operand == 1 ? 2 * width
                               : 2);
      EXPECT_EQ(count_nan(results[1], bad, length), operand == 0   ? 1
                                                    : operand == 1 ? 2
                                                                   : 0);
      EXPECT_EQ(count_nan(results[0], 0, 96 * width), 0);
      EXPECT_EQ(count_nan(results[1], 0, bad), 0);

      OpCase backward = Backward(shapes);
      backward.operands[1 + operand] = forward.operands[operand];
      backward.operands[4].values = results[0];
      backward.operands[5].values = results[1];
      const auto gradients = Evaluate(backward, kernels, false);
      EXPECT_EQ(count_nan(gradients[0], bad * width, (bad + 1) * width), width);
      EXPECT_GE(count_nan(gradients[1], 0, length * width), width);
      EXPECT_EQ(count_nan(gradients[0], 0, 96 * width), 0);
    }
  }
}

// The gradient of sum(dout * out) by central differences in FP64.
TEST(AttentionGradient, MatchesFiniteDifferences) {
  const std::vector<Shapes> all_shapes = {
      {.dtype = DType::kF64,
       .batch = 2,
       .queries = 4,
       .keys = 4,
       .heads = 4,
       .kv_heads = 2,
       .width = 3,
       .causal = true},
      {.dtype = DType::kF64,
       .batch = 1,
       .queries = 5,
       .keys = 5,
       .heads = 2,
       .kv_heads = 2,
       .width = 2,
       .causal = true,
       .documents = {0, 0, 1, 1, 1},
       .dropout = 0.4},
      {.dtype = DType::kF64,
       .batch = 2,
       .queries = 3,
       .keys = 3,
       .heads = 2,
       .kv_heads = 1,
       .width = 4,
       .causal = true,
       .rotary = true},
      {.dtype = DType::kF64,
       .batch = 1,
       .queries = 2,
       .keys = 3,
       .heads = 2,
       .kv_heads = 1,
       .width = 3,
       .scale = 0.7},
  };
  for (const Shapes& shapes : all_shapes) {
    const OpCase backward = Backward(shapes);
    const auto gradients =
        Evaluate(backward, AttentionReferenceKernels(), true);
    const std::vector<double>& dout = backward.operands[0].values;
    for (int operand = 0; operand < 3; ++operand) {
      OpCase forward = Forward(shapes);
      std::vector<double>& values = forward.operands[operand].values;
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        const double step = 1e-5;
        double difference = 0;
        for (const int sign : {1, -1}) {
          values[i] = value + sign * step;
          const auto out =
              Evaluate(forward, AttentionReferenceKernels(), true)[0];
          for (size_t e = 0; e < out.size(); ++e)
            difference += sign * out[e] * dout[e];
        }
        values[i] = value;
        EXPECT_NEAR(gradients[operand][i], difference / (2 * step), 1e-8)
            << "operand " << operand << " element " << i << " of "
            << forward.Name();
      }
    }
  }
}

TEST(Attention, InferenceNamesWhatIsWrong) {
  const auto infer = [](const Attributes& attributes, const TensorType& q,
                        const TensorType& k) {
    std::vector<TensorType> results;
    return InferResults(*Attention(), attributes, {q, k, k}, &results);
  };
  const TensorType q(DType::kF32, {1, 4, 6, 8});
  EXPECT_TRUE(
      infer(Attributes(), q, TensorType(DType::kF32, {1, 9, 3, 8})).ok());
  const absl::Status heads =
      infer(Attributes(), q, TensorType(DType::kF32, {1, 4, 4, 8}));
  EXPECT_EQ(heads.message(),
            "attention: q has 6 heads and k has 4; the former must be a "
            "multiple of the latter");
  EXPECT_FALSE(infer(Attributes().SetInt("causal", 1), q,
                     TensorType(DType::kF32, {1, 5, 3, 8}))
                   .ok());
  EXPECT_FALSE(
      infer(Attributes(), q, TensorType(DType::kBF16, {1, 4, 3, 8})).ok());
  EXPECT_FALSE(infer(Attributes().SetDouble("dropout", 0.1), q, q).ok());
  EXPECT_FALSE(infer(Attributes().SetDouble("dropout", 1), q, q).ok());
}

TEST(Attention, InferenceNamesWhatIsWrongWithPositions) {
  Attributes attributes;
  attributes.SetInt("has_rotary", 1);
  const auto infer = [&](const TensorType& q, const TensorType& k,
                         const TensorType& positions) {
    std::vector<TensorType> results;
    return std::string(
        InferResults(*Attention(), attributes, {q, k, k, positions}, &results)
            .message());
  };
  const TensorType q(DType::kF32, {2, 4, 6, 8}), positions(DType::kI32, {8});
  EXPECT_EQ(infer(q, q, positions), "attention: attribute theta is missing");
  attributes.SetDouble("theta", 10000);
  EXPECT_EQ(infer(q, q, positions), "");
  EXPECT_EQ(infer(q, q, TensorType(DType::kI32, {4})),
            "attention: positions is I32[4], must be I32[8]");
  EXPECT_EQ(infer(q, TensorType(DType::kF32, {2, 5, 6, 8}), positions),
            "attention: q is F32[2,4,6,8] and k is F32[2,5,6,8]; has_rotary "
            "takes heads of even width, as many queries as keys and no "
            "query_offset");
  const TensorType odd(DType::kF32, {2, 4, 6, 7});
  EXPECT_EQ(infer(odd, odd, positions),
            "attention: q is F32[2,4,6,7] and k is F32[2,4,6,7]; has_rotary "
            "takes heads of even width, as many queries as keys and no "
            "query_offset");
}

TEST(Attention, CausalCostsHalf) {
  const TensorType q(DType::kF32, {2, 10, 6, 8});
  const TensorType k(DType::kF32, {2, 10, 3, 8});
  std::vector<TensorType> results;
  const std::vector<TensorType> operands = {q, k, k};
  ASSERT_TRUE(
      InferResults(*Attention(), Attributes(), operands, &results).ok());
  const double full =
      CostOf(*Attention(), Attributes(), operands, results).matmul_flops;
  EXPECT_EQ(full, 4.0 * 2 * 6 * 10 * 10 * 8);
  EXPECT_EQ(
      CostOf(*Attention(), Attributes().SetInt("causal", 1), operands, results)
          .matmul_flops,
      full / 2);
}

}  // namespace
}  // namespace shardgraph
