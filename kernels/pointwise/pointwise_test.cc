#include "kernels/pointwise/pointwise.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

const OpDef* Op(absl::string_view name) {
  for (const OpDef* op : PointwiseOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

OpCase Case(absl::string_view op, std::vector<OperandCase> operands,
            Attributes attributes = {}) {
  OpCase op_case;
  op_case.op = Op(op);
  op_case.attributes = attributes;
  op_case.operands = std::move(operands);
  return op_case;
}

// Shapes with the strides of up to three operands; every pair of neighbours
// folds, does not fold, or folds in some operands only.
struct Layout {
  Dims shape;
  Dims strides[3];
};

std::vector<Layout> Layouts() {
  return {
      {{}, {{}, {}, {}}},
      {{0}, {{1}, {1}, {1}}},
      {{1}, {{1}, {1}, {1}}},
      {{37}, {{1}, {1}, {1}}},
      {{3, 0}, {{0, 1}, {4, 1}, {2, 1}}},
      {{5, 9}, {{20, 1}, {9, 1}, {11, 1}}},
      {{2, 3, 4, 5}, {{60, 20, 5, 1}, {90, 20, 5, 1}, {75, 25, 6, 1}}},
      {{3, 5501}, {{5501, 1}, {5503, 1}, {5501, 1}}},  // two tasks
  };
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Layout& layout : Layouts()) {
      // Crossing from task to task does not depend on the dtype.
      if (NumElements(layout.shape) > 1000 && dtype != DType::kBF16) continue;
      const auto operand = [&](int i, double range = 4) {
        return OperandCase(TensorType(dtype, layout.shape, layout.strides[i]),
                           -range, range);
      };
      cases.push_back(Case("add", {operand(0), operand(1)}));
      for (const int64_t tanh : {0, 1}) {
        const Attributes attributes = Attributes().SetInt("tanh", tanh);
        cases.push_back(Case("gelu", {operand(0, 7)}, attributes));
        cases.push_back(
            Case("gelu_gradient", {operand(0), operand(1, 7)}, attributes));
      }
      cases.push_back(Case("silu", {operand(0, 90)}));
      cases.push_back(Case("silu_gradient", {operand(0), operand(1, 90)}));
      cases.push_back(Case("relu", {operand(0)}));
      cases.push_back(Case("relu_gradient", {operand(0), operand(1)}));
      cases.push_back(Case("swiglu", {operand(0), operand(1)}));
      cases.back().inner_rounding = true;
      cases.push_back(
          Case("swiglu_gradient", {operand(0), operand(1), operand(2)}));
      cases.back().inner_rounding = true;
      if (layout.shape.size() == 4)
        cases.back().result_strides = {layout.strides[1], layout.strides[2]};
      for (const char* to : {"F32", "BF16", "F16"}) {
        cases.push_back(
            Case("cast", {operand(0)}, Attributes().SetString("dtype", to)));
        if (layout.shape.size() == 4)
          cases.back().result_strides = {layout.strides[2]};
      }
      cases.push_back(Case("cast", {operand(0), operand(1)},
                           Attributes()
                               .SetString("dtype", DTypeName(dtype))
                               .SetInt("accumulate", 1)));
      OperandCase factor(TensorType(DType::kF32, {}), {0.3});
      factor.fixed_dtype = true;
      cases.push_back(Case("scale", {operand(0), factor}));
    }
  }
  // Below 2^-14 the unit in the last place of F16 is a fixed 2^-24.
  for (OpCase& op_case : cases) op_case.magnitude = 0.01;
  return cases;
}

std::vector<TestKernels> Backends() {
  return {PointwiseReferenceKernels(), PointwiseCpuKernels(),
          OnCuda(PointwiseCudaKernels())};
}

TEST(Pointwise, Reference) {
  CheckKernels(Cases(), PointwiseReferenceKernels(),
               PointwiseReferenceKernels());
}

TEST(Pointwise, Cpu) {
  CheckCpuKernels(Cases(), PointwiseReferenceKernels(), PointwiseCpuKernels());
}

TEST(Pointwise, Cuda) {
  CheckCudaKernels(Cases(), PointwiseReferenceKernels(),
                   PointwiseCudaKernels());
}

TEST(Pointwise, CasesAreComplete) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(PointwiseOps()));
  EXPECT_EQ(CoveredOps(PointwiseReferenceKernels()), NamesOf(PointwiseOps()));
  EXPECT_EQ(CoveredOps(PointwiseCpuKernels()), NamesOf(PointwiseOps()));
  EXPECT_EQ(CoveredOps(PointwiseCudaKernels()), NamesOf(PointwiseOps()));
}

double One(const TestKernels& kernels, const OpCase& op_case) {
  return Evaluate(op_case, kernels, false)[0][0];
}

OperandCase Scalar(double value) {
  return OperandCase(TensorType(DType::kF32, {}), std::vector<double>{value});
}

// Values worked out by hand or from tables.
TEST(Pointwise, KnownValues) {
  const Attributes tanh = Attributes().SetInt("tanh", 1);
  for (const TestKernels& kernels : Backends()) {
    // x Phi(x), Phi(1) = 0.8413447461.
    EXPECT_NEAR(One(kernels, Case("gelu", {Scalar(1)})), 0.8413447461, 1e-6);
    // torch.nn.functional.gelu(1, approximate="tanh").
    EXPECT_NEAR(One(kernels, Case("gelu", {Scalar(1)}, tanh)), 0.8411919906,
                1e-6);
    EXPECT_NEAR(One(kernels, Case("silu", {Scalar(1)})), 0.7310585786, 1e-6);
    EXPECT_EQ(One(kernels, Case("relu", {Scalar(-2)})), 0);
    EXPECT_EQ(One(kernels, Case("relu_gradient", {Scalar(5), Scalar(0)})), 0);
  }
}

TEST(Pointwise, ExtremesDoNotMakeNaNs) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const TestKernels& kernels : Backends()) {
    for (const double x : {-1000.0, -88.0, 88.0, 1000.0}) {
      EXPECT_EQ(One(kernels, Case("silu", {Scalar(x)})) == 0, x < -100);
      const double limit = x > 0 ? x : 0;
      for (const int64_t t : {0, 1}) {
        EXPECT_EQ(One(kernels, Case("gelu", {Scalar(x)},
                                    Attributes().SetInt("tanh", t))),
                  limit);
      }
      EXPECT_NEAR(One(kernels, Case("silu_gradient", {Scalar(1), Scalar(x)})),
                  x > 0 ? 1 : 0, 1e-6);
    }
    EXPECT_EQ(One(kernels, Case("relu_gradient", {Scalar(inf), Scalar(-1)})),
              0);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const char* op : {"gelu", "silu", "relu"})
      EXPECT_TRUE(std::isnan(One(kernels, Case(op, {Scalar(nan)})))) << op;
  }
}

// Central differences of the forward reference in FP64.
void CheckGradient(absl::string_view forward, absl::string_view gradient,
                   int operands, const Attributes& attributes) {
  SCOPED_TRACE(std::string(forward));
  constexpr int n = 50;
  constexpr double step = 1e-5;
  const TensorType type(DType::kF64, {n});
  std::vector<std::vector<double>> x;
  for (int i = 0; i < operands; ++i)
    x.push_back(UniformValues(n, -3, 3, 100 + i));
  const std::vector<double> dy = UniformValues(n, -1, 1, 7);
  const auto evaluate = [&](int moved, double by) {
    std::vector<OperandCase> at;
    for (int i = 0; i < operands; ++i) {
      std::vector<double> values = x[i];
      if (i == moved)
        for (double& value : values) value += by;
      at.emplace_back(type, values);
    }
    return Evaluate(Case(forward, at, attributes), PointwiseReferenceKernels(),
                    false)[0];
  };
  std::vector<OperandCase> with_dy = {OperandCase(type, dy)};
  for (int i = 0; i < operands; ++i) with_dy.emplace_back(type, x[i]);
  const auto dx = Evaluate(Case(gradient, with_dy, attributes),
                           PointwiseReferenceKernels(), false);
  ASSERT_EQ(dx.size(), static_cast<size_t>(operands));
  for (int i = 0; i < operands; ++i) {
    const auto above = evaluate(i, step), below = evaluate(i, -step);
    for (int k = 0; k < n; ++k) {
      EXPECT_NEAR(dx[i][k], dy[k] * (above[k] - below[k]) / (2 * step), 1e-8)
          << "operand " << i << " at " << x[i][k];
    }
  }
}

TEST(Pointwise, GradientsAreDerivatives) {
  CheckGradient("gelu", "gelu_gradient", 1, Attributes().SetInt("tanh", 0));
  CheckGradient("gelu", "gelu_gradient", 1, Attributes().SetInt("tanh", 1));
  CheckGradient("silu", "silu_gradient", 1, {});
  CheckGradient("relu", "relu_gradient", 1, {});
  CheckGradient("swiglu", "swiglu_gradient", 2, {});
}

TEST(Pointwise, RefusesWhatDoesNotFit) {
  std::vector<TensorType> results;
  const TensorType x(DType::kF32, {2, 3});
  const auto infer = [&](absl::string_view op, std::vector<TensorType> types,
                         Attributes attributes = {}) {
    return std::string(
        InferResults(*Op(op), attributes, types, &results).message());
  };
  EXPECT_EQ(infer("add", {x}), "add: got 1 operands, must be 2: (a, b)");
  EXPECT_EQ(infer("add", {x, TensorType(DType::kF32, {3, 2})}),
            "add: b is F32[3,2], must be F32[2,3]");
  EXPECT_EQ(infer("swiglu", {x, TensorType(DType::kBF16, {2, 3})}),
            "swiglu: up is BF16[2,3], must be F32[2,3]");
  EXPECT_EQ(infer("gelu", {TensorType(DType::kI32, {2})}),
            "gelu: x is I32[2], must be of a floating dtype");
  EXPECT_EQ(infer("cast", {x}), "cast: attribute dtype is missing");
  EXPECT_EQ(infer("cast", {x}, Attributes().SetString("dtype", "I32")),
            "cast: attribute dtype is \"I32\", must be one of F32, BF16, F16, "
            "F64");
  EXPECT_EQ(infer("scale", {x, TensorType(DType::kF64, {})}),
            "scale: factor is F64[], must be F32[]");
}

}  // namespace
}  // namespace shardgraph
