#include "kernels/norm/norm.h"

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
  for (const OpDef* op : NormOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

struct Input {
  Dims shape;
  Dims x_strides;
  Dims dy_strides;
};

std::vector<Input> Inputs() {
  return {
      {{5}, {1}, {1}},
      {{0, 7}, {7, 1}, {7, 1}},
      {{3, 1}, {1, 1}, {1, 1}},
      {{4, 16}, {16, 1}, {16, 1}},
      {{37, 33}, {40, 1}, {33, 1}},
      {{2, 3, 2, 19}, {200, 60, 20, 1}, {114, 38, 19, 1}},
  };
}

DType Statistics(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

OpCase ForwardCase(bool layer_norm, bool bias, DType dtype,
                   const Input& input) {
  const int64_t columns = input.shape.back();
  OpCase op_case;
  op_case.op = Op(layer_norm ? "layer_norm" : "rms_norm");
  op_case.attributes.SetDouble("epsilon", 1e-3);
  op_case.operands = {
      OperandCase(TensorType(dtype, input.shape, input.x_strides), -1, 3),
      TensorType(dtype, {columns})};
  if (bias) {
    op_case.attributes.SetInt("bias", 1);
    op_case.operands.push_back(TensorType(dtype, {columns}));
  }
  // A row of one column has variance 0: rstd is 1 / sqrt(epsilon), about 32.
  op_case.magnitude = columns == 1 ? 100 : 1;
  op_case.inner_rounding = !layer_norm;
  return op_case;
}

// The norm of a sum of two; b has dy's strides.
OpCase SumCase(bool layer_norm, bool bias, DType dtype, const Input& input) {
  OpCase op_case = ForwardCase(layer_norm, bias, dtype, input);
  op_case.op = Op(layer_norm ? "add_layer_norm" : "add_rms_norm");
  op_case.operands.insert(
      op_case.operands.begin() + 1,
      OperandCase(TensorType(dtype, input.shape, input.dy_strides), -1, 3));
  op_case.inner_rounding = true;  // of the sum
  return op_case;
}

// accumulate: bit mask; destinations have dtype `weight_dtype` except dx's.
OpCase GradientCase(bool layer_norm, bool bias, DType dtype, const Input& input,
                    int64_t accumulate, DType weight_dtype) {
  const int64_t columns = input.shape.back();
  const Dims rows(input.shape.begin(), input.shape.end() - 1);
  OpCase op_case;
  op_case.op = Op(layer_norm ? "layer_norm_gradient" : "rms_norm_gradient");
  op_case.attributes.SetDouble("epsilon", 1e-3)
      .SetInt("accumulate", accumulate)
      .SetString("dtype", DTypeName(weight_dtype));
  if (bias) op_case.attributes.SetInt("bias", 1);
  op_case.operands = {
      TensorType(dtype, input.shape, input.dy_strides),
      OperandCase(TensorType(dtype, input.shape, input.x_strides), -1, 3),
      TensorType(dtype, {columns})};
  if (layer_norm) {
    op_case.operands.push_back(
        OperandCase(TensorType(Statistics(dtype), rows), 0.9, 1.1));
  }
  op_case.operands.push_back(
      OperandCase(TensorType(Statistics(dtype), rows), 0.5, 1.5));
  const TensorType destinations[] = {TensorType(dtype, input.shape),
                                     TensorType(weight_dtype, {columns}),
                                     TensorType(weight_dtype, {columns})};
  for (int r = 0; r < 3; ++r) {
    if ((accumulate >> r & 1) != 0) op_case.operands.push_back(destinations[r]);
  }
  op_case.magnitude = 4;
  return op_case;
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Input& input : Inputs()) {
      for (const bool bias : {false, true}) {
        cases.push_back(ForwardCase(true, bias, dtype, input));
        cases.push_back(SumCase(true, bias, dtype, input));
        for (const int64_t accumulate : {0, 1, 2, bias ? 7 : 3}) {
          cases.push_back(
              GradientCase(true, bias, dtype, input, accumulate, DType::kF32));
        }
      }
      cases.push_back(ForwardCase(false, false, dtype, input));
      cases.push_back(SumCase(false, false, dtype, input));
      for (const int64_t accumulate : {0, 2, 3}) {
        cases.push_back(
            GradientCase(false, false, dtype, input, accumulate, DType::kF32));
      }
      cases.push_back(GradientCase(false, false, dtype, input, 2, dtype));
      cases.push_back(GradientCase(true, true, dtype, input, 0, dtype));
    }
  }
  // Gradients that nobody wants, beside one that accumulates.
  for (const Input& input : Inputs()) {
    for (const int64_t omit : {1, 2, 4, 5, 6, 7}) {
      OpCase layer = GradientCase(true, true, DType::kBF16, input,
                                  omit == 5 ? 2 : 0, DType::kF32);
      layer.attributes.SetInt("omit", omit);
      cases.push_back(layer);
      if (omit > 3) continue;
      OpCase rms = GradientCase(false, false, DType::kF32, input,
                                omit == 1 ? 2 : 0, DType::kF32);
      rms.attributes.SetInt("omit", omit);
      cases.push_back(rms);
    }
  }
  // So many columns that their sums take much shared memory, or too much.
  for (const int64_t columns : {7001, 13000}) {
    cases.push_back(GradientCase(true, true, DType::kF32,
                                 {{2, columns}, {columns, 1}, {columns, 1}}, 0,
                                 DType::kF32));
  }
  // So many rows that the sums over them are cut into blocks of more than the
  // least size.
  const Input rows = {{700, 9}, {9, 1}, {12, 1}};
  for (const int64_t accumulate : {0, 6}) {
    cases.push_back(
        GradientCase(true, true, DType::kF32, rows, accumulate, DType::kF32));
  }
  cases.push_back(
      GradientCase(false, false, DType::kBF16, rows, 2, DType::kF32));
  return cases;
}

std::vector<TestKernels> Backends() {
  return {NormReferenceKernels(), NormCpuKernels(), OnCuda(NormCudaKernels())};
}

TEST(Norm, Reference) {
  CheckKernels(Cases(), NormReferenceKernels(), NormReferenceKernels());
}

TEST(Norm, Cpu) {
  CheckCpuKernels(Cases(), NormReferenceKernels(), NormCpuKernels());
}

TEST(Norm, Cuda) {
  CheckCudaKernels(Cases(), NormReferenceKernels(), NormCudaKernels());
}

TEST(Norm, CasesAreComplete) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(NormOps()));
  EXPECT_EQ(CoveredOps(NormReferenceKernels()), NamesOf(NormOps()));
  EXPECT_EQ(CoveredOps(NormCpuKernels()), NamesOf(NormOps()));
  EXPECT_EQ(CoveredOps(NormCudaKernels()), NamesOf(NormOps()));
}

TEST(Norm, LeavingAGradientOutChangesNoOther) {
  const Input input = {{700, 9}, {9, 1}, {12, 1}};
  for (const TestKernels& kernels : Backends()) {
    OpCase op_case =
        GradientCase(true, true, DType::kBF16, input, 0, DType::kF32);
    const auto all = Evaluate(op_case, kernels, false);
    for (int64_t omit = 1; omit < 8; ++omit) {
      op_case.attributes.SetInt("omit", omit);
      const auto some = Evaluate(op_case, kernels, false);
      for (int r = 0; r < 3; ++r)
        EXPECT_EQ(some[r], omit >> r & 1 ? ResultValues() : all[r]) << omit;
    }
  }
}

TEST(Norm, KnownValues) {
  const TensorType row(DType::kF32, {1, 4}), vector(DType::kF32, {4});
  OpCase layer_norm;
  layer_norm.op = Op("layer_norm");
  layer_norm.attributes.SetDouble("epsilon", 0).SetInt("bias", 1);
  layer_norm.operands = {OperandCase(row, {1, 3, 1, 3}),
                         OperandCase(vector, {1, 1, 2, 2}),
                         OperandCase(vector, {0, 0, 0, 5})};
  OpCase rms_norm;
  rms_norm.op = Op("rms_norm");
  rms_norm.attributes.SetDouble("epsilon", 0);
  rms_norm.operands = {OperandCase(row, {1, 7, 1, 7}),
                       OperandCase(vector, {5, 5, 10, 0})};
  for (const TestKernels& kernels : Backends()) {
    const auto y = Evaluate(layer_norm, kernels, false);
    EXPECT_EQ(y[0], (std::vector<double>{-1, 1, -2, 7}));
    EXPECT_EQ(y[1][0], 2);  // mean
    EXPECT_EQ(y[2][0], 1);  // rstd
    const auto z = Evaluate(rms_norm, kernels, false);
    EXPECT_NEAR(z[0][0], 1, 1e-6);
    EXPECT_NEAR(z[0][1], 7, 1e-6);
    EXPECT_NEAR(z[0][2], 2, 1e-6);
    EXPECT_EQ(z[0][3], 0);
    EXPECT_NEAR(z[1][0], 0.2, 1e-7);
  }
}

// d/dx of sum(dy * y) by central differences in FP64, for x, weight and bias.
void CheckGradient(bool layer_norm, bool bias) {
  constexpr double step = 1e-5;
  const int64_t rows = 3, columns = 5;
  const TensorType x_type(DType::kF64, {rows, columns});
  const TensorType w_type(DType::kF64, {columns});
  std::vector<std::vector<double>> inputs = {
      UniformValues(rows * columns, -1, 2, 1),
      UniformValues(columns, -1, 1, 2)};
  if (bias) inputs.push_back(UniformValues(columns, -1, 1, 3));
  const std::vector<double> dy = UniformValues(rows * columns, -1, 1, 4);
  const auto forward = [&](const std::vector<std::vector<double>>& at) {
    OpCase op_case;
    op_case.op = Op(layer_norm ? "layer_norm" : "rms_norm");
    op_case.attributes.SetDouble("epsilon", 1e-2).SetInt("bias", bias);
    for (size_t i = 0; i < at.size(); ++i)
      op_case.operands.emplace_back(i == 0 ? x_type : w_type, at[i]);
    return Evaluate(op_case, NormReferenceKernels(), false);
  };
  const auto loss = [&](const std::vector<std::vector<double>>& at) {
    const std::vector<double> y = forward(at)[0];
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  const auto y = forward(inputs);
  OpCase gradient;
  gradient.op = Op(layer_norm ? "layer_norm_gradient" : "rms_norm_gradient");
  gradient.attributes.SetDouble("epsilon", 1e-2).SetInt("bias", bias);
  gradient.operands = {OperandCase(x_type, dy), OperandCase(x_type, inputs[0]),
                       OperandCase(w_type, inputs[1])};
  for (size_t r = 1; r < y.size(); ++r)
    gradient.operands.emplace_back(TensorType(DType::kF64, {rows}), y[r]);
  const auto slopes = Evaluate(gradient, NormReferenceKernels(), false);
  ASSERT_EQ(slopes.size(), inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (size_t k = 0; k < inputs[i].size(); ++k) {
      auto above = inputs, below = inputs;
      above[i][k] += step;
      below[i][k] -= step;
      EXPECT_NEAR(slopes[i][k], (loss(above) - loss(below)) / (2 * step), 1e-8)
          << "input " << i << " element " << k;
    }
  }
}

TEST(Norm, GradientsAreDerivatives) {
  CheckGradient(true, false);
  CheckGradient(true, true);
  CheckGradient(false, false);
}

TEST(Norm, RefusesWhatDoesNotFit) {
  std::vector<TensorType> results;
  const TensorType x(DType::kBF16, {2, 3}), weight(DType::kBF16, {3});
  const auto infer = [&](absl::string_view op, std::vector<TensorType> types,
                         Attributes attributes) {
    return std::string(
        InferResults(*Op(op), attributes, types, &results).message());
  };
  const Attributes epsilon = Attributes().SetDouble("epsilon", 1e-5);
  EXPECT_EQ(infer("layer_norm", {x, weight}, {}),
            "layer_norm: attribute epsilon is missing");
  EXPECT_EQ(
      infer("layer_norm", {x, weight}, Attributes(epsilon).SetInt("bias", 1)),
      "layer_norm: got 2 operands, must be 3: (x, weight, bias)");
  EXPECT_EQ(infer("rms_norm", {x, TensorType(DType::kBF16, {4})}, epsilon),
            "rms_norm: weight is BF16[4], must be BF16[3]");
  EXPECT_EQ(infer("rms_norm", {TensorType(DType::kF32, {}), weight}, epsilon),
            "rms_norm: x is F32[], must be of 1 to 8 dimensions");
  EXPECT_EQ(infer("add_rms_norm", {x}, epsilon),
            "add_rms_norm: a or b is missing");
  EXPECT_EQ(infer("add_rms_norm", {x, TensorType(DType::kBF16, {3}), weight},
                  epsilon),
            "add_rms_norm: b is BF16[3], must be BF16[2,3]");
  EXPECT_EQ(infer("rms_norm_gradient",
                  {x, x, weight, TensorType(DType::kBF16, {2})}, {}),
            "rms_norm_gradient: rstd is BF16[2], must be F32[2]");
}

}  // namespace
}  // namespace shardgraph
