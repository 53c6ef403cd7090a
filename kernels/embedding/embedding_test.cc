#include "kernels/embedding/embedding.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

const OpDef* Op(absl::string_view name) {
  for (const OpDef* op : EmbeddingOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

OpCase LookUp(DType dtype, int64_t count, int64_t rows, int64_t columns) {
  OpCase op_case;
  op_case.op = Op("embedding");
  op_case.operands = {OperandCase(TensorType(DType::kI32, {count}), 0,
                                  static_cast<double>(rows - 1)),
                      TensorType(dtype, {rows, columns})};
  return op_case;
}

OpCase Gradient(DType dtype, DType to, int64_t count, int64_t rows,
                int64_t columns, bool accumulate) {
  OpCase op_case;
  op_case.op = Op("embedding_gradient");
  op_case.attributes.SetInt("rows", rows)
      .SetString("dtype", DTypeName(to))
      .SetInt("accumulate", accumulate);
  op_case.operands = {OperandCase(TensorType(DType::kI32, {count}), 0,
                                  static_cast<double>(rows - 1)),
                      TensorType(dtype, {count, columns})};
  if (accumulate) op_case.operands.push_back(TensorType(to, {rows, columns}));
  op_case.magnitude = 1;
  return op_case;
}

OpCase Rotary(DType dtype, Dims shape, Dims strides, Dims result_strides,
              bool inverse) {
  OpCase op_case;
  op_case.op = Op("rotary");
  op_case.attributes.SetDouble("theta", 10000).SetInt("inverse", inverse);
  op_case.operands = {
      TensorType(dtype, shape, strides),
      OperandCase(TensorType(DType::kI32, {shape[0] * shape[1]}), 0, 5000)};
  op_case.result_strides = {result_strides};
  op_case.magnitude = 1;
  op_case.inner_rounding = true;
  return op_case;
}

Attributes Llama3(Attributes attributes) {
  return attributes.SetString("rope_type", "llama3")
      .SetDouble("factor", 8)
      .SetDouble("low_freq_factor", 1)
      .SetDouble("high_freq_factor", 4)
      .SetInt("original_max_position", 8192);
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    cases.push_back(LookUp(dtype, 0, 5, 3));
    cases.push_back(LookUp(dtype, 4, 5, 0));
    cases.push_back(LookUp(dtype, 100, 13, 36));
    for (const DType to : {DType::kF32, dtype}) {
      for (const bool accumulate : {false, true}) {
        cases.push_back(Gradient(dtype, to, 0, 5, 3, accumulate));
        cases.push_back(Gradient(dtype, to, 4, 5, 0, accumulate));
        // Rows hit many times, rows never hit; more than a chunk of columns.
        cases.push_back(Gradient(dtype, to, 300, 7, 33, accumulate));
        cases.push_back(Gradient(dtype, to, 40, 131, 300, accumulate));
        cases.push_back(Gradient(dtype, to, 700, 2, 9, accumulate));
      }
    }
    for (const bool inverse : {false, true}) {
      cases.push_back(Rotary(dtype, {1, 3, 2, 2}, {12, 4, 2, 1}, {}, inverse));
      cases.push_back(
          Rotary(dtype, {2, 5, 3, 18}, {500, 90, 20, 1}, {}, inverse));
      cases.push_back(Rotary(dtype, {2, 3, 1, 144}, {432, 144, 144, 1},
                             {900, 300, 150, 1}, inverse));
      cases.push_back(Rotary(dtype, {0, 3, 1, 4}, {12, 4, 4, 1}, {}, inverse));
    }
    cases.push_back(
        Rotary(dtype, {1, 4, 2, 128}, {1024, 256, 128, 1}, {}, false));
    cases.back().attributes = Llama3(cases.back().attributes);
  }
  for (const int64_t length : {0, 1, 7}) {
    OpCase op_case;
    op_case.op = Op("positions");
    op_case.attributes.SetInt("batch", 3).SetInt("length", length);
    op_case.operands = {OperandCase(TensorType(DType::kI64, {}), 0, 1000)};
    cases.push_back(op_case);
  }
  return cases;
}

std::vector<TestKernels> Backends() {
  return {EmbeddingReferenceKernels(), EmbeddingCpuKernels(),
          OnCuda(EmbeddingCudaKernels())};
}

TEST(Embedding, Reference) {
  CheckKernels(Cases(), EmbeddingReferenceKernels(),
               EmbeddingReferenceKernels());
}

TEST(Embedding, Cpu) {
  CheckCpuKernels(Cases(), EmbeddingReferenceKernels(), EmbeddingCpuKernels());
}

TEST(Embedding, Cuda) {
  CheckCudaKernels(Cases(), EmbeddingReferenceKernels(),
                   EmbeddingCudaKernels());
}

TEST(Embedding, CasesAreComplete) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(EmbeddingOps()));
  EXPECT_EQ(CoveredOps(EmbeddingReferenceKernels()), NamesOf(EmbeddingOps()));
  EXPECT_EQ(CoveredOps(EmbeddingCpuKernels()), NamesOf(EmbeddingOps()));
  EXPECT_EQ(CoveredOps(EmbeddingCudaKernels()), NamesOf(EmbeddingOps()));
}

TEST(Embedding, IdsOutsideTheTableReadNothing) {
  OpCase op_case = LookUp(DType::kF32, 3, 2, 2);
  op_case.operands[0].values = {-1, 1, 2};
  op_case.operands[1].values = {1, 2, 3, 4};
  for (const TestKernels& kernels :
       {TestKernels(EmbeddingCpuKernels()), OnCuda(EmbeddingCudaKernels())}) {
    EXPECT_EQ(Evaluate(op_case, kernels, false)[0],
              (std::vector<double>{0, 0, 3, 4, 0, 0}));
  }
  EXPECT_DEATH(Evaluate(op_case, EmbeddingReferenceKernels(), false),
               "id -1 at position 0 is outside the table of 2 rows");
  OpCase gradient = Gradient(DType::kF32, DType::kF32, 3, 2, 1, false);
  gradient.operands[0].values = {-1, 1, 2};
  gradient.operands[1].values = {5, 6, 7};
  for (const TestKernels& kernels : Backends()) {
    EXPECT_EQ(Evaluate(gradient, kernels, false)[0],
              (std::vector<double>{0, 6}));
  }
}

// The result of the forward op and of its gradient are adjoint:
// <dy, f(x)> = <f'(dy), x>.
TEST(Embedding, GradientIsTheAdjoint) {
  OpCase forward = LookUp(DType::kF64, 20, 7, 5);
  OpCase gradient = Gradient(DType::kF64, DType::kF64, 20, 7, 5, false);
  forward.operands[0].values = gradient.operands[0].values = {
      0, 3, 3, 6, 1, 1, 1, 0, 4, 6, 6, 6, 2, 3, 0, 1, 4, 4, 2, 6};
  forward.operands[1].values = UniformValues(35, -1, 1, 5);
  gradient.operands[1].values = UniformValues(100, -1, 1, 6);
  const auto y = Evaluate(forward, EmbeddingReferenceKernels(), false)[0];
  const auto dw = Evaluate(gradient, EmbeddingReferenceKernels(), false)[0];
  double left = 0, right = 0;
  for (int i = 0; i < 100; ++i) left += gradient.operands[1].values[i] * y[i];
  for (int i = 0; i < 35; ++i) right += dw[i] * forward.operands[1].values[i];
  EXPECT_NEAR(left, right, 1e-12);
}

TEST(Rotary, KnownValues) {
  // D = 4: angles p and p / 100 turn the pairs (0, 2) and (1, 3).
  OpCase op_case = Rotary(DType::kF32, {1, 2, 1, 4}, {8, 4, 4, 1}, {}, false);
  op_case.operands[0].values = {1, 2, 3, 4, 1, 2, 3, 4};
  op_case.operands[1].values = {0, 2};
  for (const TestKernels& kernels : Backends()) {
    const auto y = Evaluate(op_case, kernels, false)[0];
    EXPECT_EQ(std::vector<double>(y.begin(), y.begin() + 4),
              (std::vector<double>{1, 2, 3, 4}));
    EXPECT_NEAR(y[4], std::cos(2) - 3 * std::sin(2), 1e-6);
    EXPECT_NEAR(y[5], 2 * std::cos(0.02) - 4 * std::sin(0.02), 1e-6);
    EXPECT_NEAR(y[6], 3 * std::cos(2) + std::sin(2), 1e-6);
    EXPECT_NEAR(y[7], 4 * std::cos(0.02) + 2 * std::sin(0.02), 1e-6);
  }
}

// A rotation: the inverse brings x back, so it is also the gradient.
TEST(Rotary, InverseUndoes) {
  OpCase op_case = Rotary(DType::kF64, {2, 3, 2, 6}, {36, 12, 6, 1}, {}, false);
  const std::vector<double> x = UniformValues(72, -1, 1, 9);
  op_case.operands[0].values = x;
  op_case.operands[1].values = {0, 1, 2, 100, 1000, 4000};
  const auto y = Evaluate(op_case, EmbeddingReferenceKernels(), false)[0];
  op_case.operands[0].values = y;
  op_case.attributes.SetInt("inverse", 1);
  const auto back = Evaluate(op_case, EmbeddingReferenceKernels(), false)[0];
  for (int i = 0; i < 72; ++i) EXPECT_NEAR(back[i], x[i], 1e-6);
}

TEST(Rotary, Llama3StretchesLongWavelengthsOnly) {
  const Attributes plain = Attributes().SetDouble("theta", 500000);
  const std::vector<float> before = RotaryFrequencies(plain, 128);
  const std::vector<float> after = RotaryFrequencies(Llama3(plain), 128);
  int kept = 0, stretched = 0, between = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    const double wavelength = 2 * M_PI / before[i];
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(after[i], before[i]);
      ++kept;
    } else if (wavelength > 8192) {
      EXPECT_FLOAT_EQ(after[i], before[i] / 8);
      ++stretched;
    } else {
      EXPECT_LT(after[i], before[i]);
      EXPECT_GT(after[i], before[i] / 8);
      ++between;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
}

TEST(Embedding, RefusesWhatDoesNotFit) {
  std::vector<TensorType> results;
  const auto infer = [&](absl::string_view op, std::vector<TensorType> types,
                         Attributes attributes = {}) {
    return std::string(
        InferResults(*Op(op), attributes, types, &results).message());
  };
  const TensorType ids(DType::kI32, {6}), table(DType::kF32, {5, 3});
  EXPECT_EQ(infer("embedding", {TensorType(DType::kI64, {6}), table}),
            "embedding: ids is I64[6], must be I32[*]");
  EXPECT_EQ(infer("embedding_gradient", {ids, TensorType(DType::kF32, {6, 3})}),
            "embedding_gradient: attribute rows is missing");
  EXPECT_EQ(
      infer("embedding_gradient", {ids, table}, Attributes().SetInt("rows", 5)),
      "embedding_gradient: dy is F32[5,3], must be of shape [6,*]");
  const Attributes theta = Attributes().SetDouble("theta", 10000);
  EXPECT_EQ(
      infer("rotary", {TensorType(DType::kF32, {2, 3, 1, 5}), ids}, theta),
      "rotary: x is F32[2,3,1,5], its last dimension must be even");
  const TensorType x(DType::kF32, {2, 3, 1, 4});
  EXPECT_EQ(infer("rotary", {x, ids}), "rotary: attribute theta is missing");
  EXPECT_EQ(infer("rotary", {x, ids},
                  Attributes(theta).SetString("rope_type", "yarn")),
            "rotary: attribute rope_type is \"yarn\", must be \"\" or "
            "\"llama3\"");
  EXPECT_EQ(infer("rotary", {x, ids},
                  Attributes(theta).SetString("rope_type", "llama3")),
            "rotary: attribute factor is missing");
}

}  // namespace
}  // namespace shardgraph
