#include "kernels/matmul/matmul.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/matmul/cublaslt.h"
#include "kernels/matmul/gemm.h"
#include "kernels/matmul/gemm_doubles.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/reference/access.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

const OpDef* Matmul() { return MatmulOps()[0]; }
const OpDef* ColumnSum() { return MatmulOps()[1]; }
const OpDef* MatmulPointwise() { return MatmulOps()[2]; }
const OpDef* MatmulColumnSum() { return MatmulOps()[3]; }

struct Sizes {
  int64_t m, n, k;
};

OpCase MatmulCase(DType dtype, Sizes sizes, bool transpose_a, bool transpose_b,
                  int64_t gap = 0) {
  const auto type = [&](int64_t rows, int64_t columns) {
    return TensorType(dtype, {rows, columns}, {columns + gap, 1});
  };
  OpCase op_case;
  op_case.op = Matmul();
  op_case.attributes.SetInt("transpose_a", transpose_a)
      .SetInt("transpose_b", transpose_b);
  op_case.operands = {
      transpose_a ? type(sizes.k, sizes.m) : type(sizes.m, sizes.k),
      transpose_b ? type(sizes.n, sizes.k) : type(sizes.k, sizes.n)};
  if (gap > 0) op_case.result_strides = {{sizes.n + 2 * gap, 1}};
  return op_case;
}

void AddBias(OpCase* op_case, DType dtype, int64_t n) {
  op_case->attributes.SetInt("bias", 1);
  op_case->operands.push_back(TensorType(dtype, {n}));
}

void Accumulate(OpCase* op_case, TensorType destination) {
  op_case->attributes.SetInt("accumulate", 1)
      .SetString("dtype", DTypeName(destination.dtype));
  op_case->operands.push_back(destination);
}

// A product (with bias when it has an odd number of rows) and what follows it.
OpCase PointwiseCase(DType dtype, Sizes sizes, const std::string& function,
                     bool tanh, bool keep, int64_t gap) {
  OpCase op_case =
      MatmulCase(dtype, sizes, sizes.m % 3 == 0, sizes.n % 3 == 0, gap);
  op_case.op = MatmulPointwise();
  op_case.inner_rounding = true;
  op_case.attributes.SetString("function", function)
      .SetInt("tanh", tanh)
      .SetInt("keep", keep);
  if (sizes.m % 2 != 0) AddBias(&op_case, dtype, sizes.n);
  if (function.find("gradient") != std::string::npos || function == "add") {
    op_case.operands.push_back(
        TensorType(dtype, {sizes.m, sizes.n}, {sizes.n + gap, 1}));
  }
  if (keep && gap > 0) op_case.result_strides.push_back({sizes.n + gap, 1});
  return op_case;
}

std::vector<OpCase> PointwiseCases(DType dtype) {
  std::vector<OpCase> cases;
  for (const Sizes sizes :
       {Sizes{1, 2, 3}, Sizes{0, 4, 2}, Sizes{3, 0, 2}, Sizes{3, 6, 0},
        Sizes{13, 70, 40}, Sizes{6, 32, 300}, Sizes{50, 34, 9}}) {
    for (const std::string function :
         {"gelu", "gelu_gradient", "silu", "silu_gradient", "relu",
          "relu_gradient", "swiglu", "add"}) {
      const bool gelu = function.find("gelu") == 0;
      for (const bool tanh : {false, true}) {
        if (tanh && !gelu) continue;
        for (const bool keep : {false, true}) {
          cases.push_back(PointwiseCase(dtype, sizes, function, tanh, keep,
                                        keep == tanh ? 3 : 0));
        }
      }
    }
  }
  return cases;
}

// Gradients of a linear layer's weight and bias, of `dtype`.
OpCase ColumnSumCase(DType dtype, Sizes sizes, const std::string& sum,
                     DType results, int accumulate, int64_t gap) {
  OpCase op_case = MatmulCase(dtype, sizes, true, false, gap);
  op_case.op = MatmulColumnSum();
  op_case.attributes.SetString("sum", sum)
      .SetString("dtype", DTypeName(results))
      .SetInt("accumulate", accumulate);
  if ((accumulate & 1) != 0) {
    op_case.result_strides.clear();
    op_case.operands.push_back(
        TensorType(results, {sizes.m, sizes.n}, {sizes.n + gap, 1}));
  }
  if ((accumulate & 2) != 0) {
    op_case.operands.push_back(
        TensorType(results, {sum == "a" ? sizes.m : sizes.n}));
  }
  return op_case;
}

std::vector<OpCase> ColumnSumCases(DType dtype) {
  std::vector<OpCase> cases;
  for (const std::string sum : {"a", "b"}) {
    for (const Sizes sizes :
         {Sizes{1, 1, 1}, Sizes{0, 4, 2}, Sizes{3, 0, 2}, Sizes{3, 6, 0},
          Sizes{16, 24, 80}, Sizes{13, 70, 40}, Sizes{24, 8, 700}}) {
      for (const int accumulate : {0, 1, 2, 3}) {
        cases.push_back(ColumnSumCase(dtype, sizes, sum, DType::kF32,
                                      accumulate, sizes.m == 13 ? 3 : 0));
      }
    }
    cases.push_back(ColumnSumCase(dtype, {16, 24, 80}, sum, dtype, 0, 8));
  }
  return cases;
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    // Sizes on both sides of every block: registers, tiles, packed depth.
    for (const Sizes sizes :
         {Sizes{1, 1, 1}, Sizes{0, 3, 2}, Sizes{3, 0, 2}, Sizes{3, 5, 0},
          Sizes{7, 17, 9}, Sizes{13, 33, 40}, Sizes{6, 16, 256},
          Sizes{1, 300, 20}, Sizes{195, 2, 31}, Sizes{2, 258, 258}}) {
      for (const bool transpose_a : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          cases.push_back(MatmulCase(dtype, sizes, transpose_a, transpose_b));
          cases.push_back(
              MatmulCase(dtype, sizes, transpose_a, transpose_b, 3));
        }
      }
    }
    OpCase with_bias = MatmulCase(dtype, {9, 35, 20}, false, true);
    AddBias(&with_bias, dtype, 35);
    cases.push_back(with_bias);
    Accumulate(&with_bias, TensorType(dtype, {9, 35}, {40, 1}));
    cases.push_back(with_bias);
    // The gradient of a weight: F32 sums over many rows, in place.
    OpCase gradient = MatmulCase(dtype, {20, 24, 1000}, true, false);
    Accumulate(&gradient, TensorType(DType::kF32, {20, 24}));
    cases.push_back(gradient);
    // Several blocks of rows and of columns at once.
    OpCase blocks = MatmulCase(dtype, {70, 131, 20}, false, true);
    AddBias(&blocks, dtype, 131);
    cases.push_back(blocks);
    OpCase empty = MatmulCase(dtype, {4, 5, 0}, false, false);
    Accumulate(&empty, TensorType(DType::kF32, {4, 5}));
    cases.push_back(empty);

    for (const OpCase& op_case : PointwiseCases(dtype))
      cases.push_back(op_case);
    for (const OpCase& op_case : ColumnSumCases(dtype))
      cases.push_back(op_case);

    for (const Dims& shape : {Dims{1, 1}, Dims{0, 5}, Dims{3, 0}, Dims{7, 130},
                              Dims{300, 63}, Dims{1100, 9}}) {
      OpCase sum;
      sum.op = ColumnSum();
      sum.operands = {TensorType(dtype, shape)};
      cases.push_back(sum);
      sum.operands = {TensorType(dtype, shape, {shape[1] + 5, 1})};
      Accumulate(&sum, TensorType(DType::kF32, {shape[1]}));
      cases.push_back(sum);
    }
  }
  cases.push_back(MatmulCase(DType::kF64, {5, 6, 7}, true, true));
  cases.push_back(MatmulCase(DType::kF16, {5, 6, 7}, false, true));
  return cases;
}

// Besides, products that share packed panels, for which they take a workspace.
std::vector<OpCase> CpuCases() {
  std::vector<OpCase> cases = Cases();
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    OpCase large = MatmulCase(dtype, {196, 257, 129}, false, true);
    AddBias(&large, dtype, 257);
    cases.push_back(large);
  }
  return cases;
}

TEST(Matmul, Reference) {
  CheckKernels(Cases(), MatmulReferenceKernels(), MatmulReferenceKernels());
}

TEST(Matmul, Cpu) {
  CheckKernels(CpuCases(), MatmulReferenceKernels(), MatmulCpuKernels());
}

TEST(Matmul, Cuda) {
  CheckCudaKernels(Cases(), MatmulReferenceKernels(), MatmulCudaKernels());
}

TEST(Matmul, CudaWithoutCublasLt) {
  const cuda::CublasLtRefusal own_kernels;
  std::vector<OpCase> cases = Cases();
  std::erase_if(
      cases, [](const OpCase& op_case) { return op_case.op == ColumnSum(); });
  CheckCudaKernels(cases, MatmulReferenceKernels(), MatmulCudaKernels());
}

// Kernels of BF16 operands, on plain code in place of the instructions.
void CheckBf16Kernels(const GemmKernels& kernels) {
  const GemmKernelsOverride only(kernels);
  std::vector<OpCase> cases = CpuCases();
  std::erase_if(cases, [](const OpCase& op_case) {
    return op_case.operands[0].type.dtype != DType::kBF16;
  });
  CheckKernels(cases, MatmulReferenceKernels(), MatmulCpuKernels());
}

TEST(Matmul, Amx) { CheckBf16Kernels(amx_double::kGemmKernels); }

TEST(Matmul, Avx512Bf16) { CheckBf16Kernels(avx512_bf16_double::kGemmKernels); }

TEST(Matmul, Avx512) {
  const GemmKernelsOverride avx512(avx512_double::kGemmKernels);
  CheckKernels(CpuCases(), MatmulReferenceKernels(), MatmulCpuKernels());
}

TEST(Matmul, EveryOpHasCasesAndKernels) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(MatmulOps()));
  EXPECT_EQ(CoveredOps(MatmulReferenceKernels()), NamesOf(MatmulOps()));
  EXPECT_EQ(CoveredOps(MatmulCpuKernels()), NamesOf(MatmulOps()));
  EXPECT_EQ(CoveredOps(MatmulCudaKernels()), NamesOf(MatmulOps()));
}

// On one backend, bit for bit.
void CheckFusedEqualsComposed(const TestKernels& matmul,
                              const TestKernels& pointwise_kernels) {
  const auto with_values = [](OpCase op_case) {
    for (OperandCase& operand : op_case.operands) {
      operand.values = UniformValues(operand.type.num_elements(), -2, 2,
                                     operand.type.num_elements());
    }
    return op_case;
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<OpCase> cases = PointwiseCases(dtype);
    if (matmul.device == nullptr) {  // these share packed panels
      cases.push_back(
          PointwiseCase(dtype, {200, 520, 130}, "swiglu", false, true, 3));
      cases.push_back(PointwiseCase(dtype, {201, 525, 130}, "gelu_gradient",
                                    true, false, 3));
    }
    for (const OpCase& op_case : cases) {
      SCOPED_TRACE(op_case.Name());
      const OpCase fused = with_values(op_case);
      const std::string function = fused.attributes.String("function");
      const std::vector<ResultValues> results = Evaluate(fused, matmul, false);

      OpCase product = fused;
      product.op = Matmul();
      product.result_strides.clear();
      const bool bias = fused.attributes.Int("bias") != 0;
      product.operands.resize(bias ? 3 : 2, fused.operands[0]);
      const ResultValues y = Evaluate(product, matmul, false)[0];
      if (results.size() == 2) {
        EXPECT_EQ(results[0], y);
      }

      OpCase pointwise;
      for (const OpDef* op : PointwiseOps()) {
        if (op->name == function) pointwise.op = op;
      }
      ASSERT_NE(pointwise.op, nullptr);
      pointwise.attributes.SetInt("tanh", fused.attributes.Int("tanh"));
      const bool transpose_a = fused.attributes.Int("transpose_a") != 0;
      const int64_t m = fused.operands[0].type.dim(transpose_a ? 1 : 0);
      const bool transpose_b = fused.attributes.Int("transpose_b") != 0;
      const int64_t n = fused.operands[1].type.dim(transpose_b ? 0 : 1);
      if (function == "swiglu") {
        ResultValues halves[2];
        for (int64_t i = 0; i < m * n; ++i)
          halves[i % n / (n / 2)].push_back(y[i]);
        for (const ResultValues& half : halves)
          pointwise.operands.push_back({TensorType(dtype, {m, n / 2}), half});
      } else {
        pointwise.operands.push_back({TensorType(dtype, {m, n}), y});
        if (fused.operands.size() > product.operands.size())
          pointwise.operands.push_back(fused.operands.back());
      }
      EXPECT_EQ(results.back(),
                Evaluate(pointwise, pointwise_kernels, false)[0]);
    }
  }
}

void CheckSumsEqualComposed(const TestKernels& kernels) {
  for (OpCase fused : ColumnSumCases(DType::kBF16)) {
    if (fused.attributes.Int("accumulate") != 0) continue;
    SCOPED_TRACE(fused.Name());
    for (OperandCase& operand : fused.operands) {
      operand.values = UniformValues(operand.type.num_elements(), -2, 2,
                                     operand.type.num_elements());
    }
    const std::vector<ResultValues> results = Evaluate(fused, kernels, false);
    OpCase product = fused;
    product.op = Matmul();
    EXPECT_EQ(results[0], Evaluate(product, kernels, false)[0]);
    OpCase sum;
    sum.op = ColumnSum();
    sum.attributes.SetString("dtype", fused.attributes.String("dtype"));
    sum.operands = {fused.operands[SummedOperand(fused.attributes)]};
    EXPECT_EQ(results[1], Evaluate(sum, kernels, false)[0]);
  }
}

TEST(Matmul, FusedEqualsComposed) {
  CheckFusedEqualsComposed(MatmulCpuKernels(), PointwiseCpuKernels());
  CheckSumsEqualComposed(MatmulReferenceKernels());
  CheckSumsEqualComposed(MatmulCpuKernels());
  const cuda::CublasLtRefusal own_kernels;
  const TestKernels on_cuda = OnCuda(MatmulCudaKernels());
  CheckFusedEqualsComposed(on_cuda, {PointwiseCudaKernels(), on_cuda.device});
  CheckSumsEqualComposed(on_cuda);
}

// Within what the order of sums and one rounding may change.
TEST(Matmul, EpiloguesEqualComposed) {
  const TestKernels library = OnCuda(MatmulCudaKernels());
  for (const std::string sum : {"a", "b"}) {
    OpCase fused =
        ColumnSumCase(DType::kBF16, {16, 24, 80}, sum, DType::kF32, 0, 0);
    for (OperandCase& operand : fused.operands)
      operand.values = UniformValues(operand.type.num_elements(), -2, 2, 3);
    const std::vector<ResultValues> results = Evaluate(fused, library, false);
    const cuda::CublasLtRefusal own_kernels;
    const std::vector<ResultValues> own = Evaluate(fused, library, false);
    for (int r = 0; r < 2; ++r) {
      for (size_t i = 0; i < own[r].size(); ++i)
        EXPECT_NEAR(results[r][i], own[r][i], 1e-4) << r << " " << i;
    }
  }
}

TEST(Matmul, ColumnSumsRefuseWhatTheyAreNot) {
  const auto message = [](Attributes attributes) {
    std::vector<TensorType> results;
    const TensorType operands[] = {TensorType(DType::kF32, {5, 3}),
                                   TensorType(DType::kF32, {5, 4})};
    return std::string(
        InferResults(*MatmulColumnSum(), attributes, operands, &results)
            .message());
  };
  const Attributes rows = Attributes().SetInt("transpose_a", 1);
  EXPECT_THAT(message(rows), ::testing::HasSubstr("attribute sum is missing"));
  EXPECT_THAT(message(Attributes(rows).SetString("sum", "c")),
              ::testing::HasSubstr("\"a\" or \"b\""));
  EXPECT_THAT(message(Attributes().SetString("sum", "a")),
              ::testing::HasSubstr("transpose_a must be 1"));
}

TEST(Matmul, ReferenceByHand) {
  OpCase op_case = MatmulCase(DType::kF32, {2, 2, 3}, false, true);
  op_case.operands[0].values = {1, 2, 3, 4, 5, 6};
  op_case.operands[1].values = {1, 0, -1, 2, 1, 0};
  AddBias(&op_case, DType::kF32, 2);
  op_case.operands[2].values = {10, 20};
  EXPECT_EQ(Evaluate(op_case, MatmulReferenceKernels(), true)[0],
            (ResultValues{8, 24, 8, 33}));
  op_case = MatmulCase(DType::kF32, {2, 2, 3}, true, false);
  op_case.operands[0].values = {1, 4, 2, 5, 3, 6};
  op_case.operands[1].values = {1, 2, 0, 1, -1, 0};
  EXPECT_EQ(Evaluate(op_case, MatmulReferenceKernels(), true)[0],
            (ResultValues{-2, 4, -2, 13}));
}

TEST(Matmul, InferenceNamesWhatIsWrong) {
  std::vector<TensorType> results;
  const TensorType x(DType::kF32, {2, 3});
  absl::Status status = InferResults(*Matmul(), Attributes(), {x, x}, &results);
  EXPECT_EQ(status.message(),
            "matmul: a is F32[2,3] and b is F32[2,3]; the inner sizes 3 and 2 "
            "must be equal");
  EXPECT_FALSE(InferResults(*Matmul(), Attributes().SetInt("transpose_b", 1),
                            {x, TensorType(DType::kBF16, {4, 3})}, &results)
                   .ok());
  EXPECT_FALSE(
      InferResults(*Matmul(),
                   Attributes().SetInt("transpose_b", 1).SetInt("bias", 1),
                   {x, x, TensorType(DType::kF32, {3})}, &results)
          .ok());
  EXPECT_FALSE(InferResults(*ColumnSum(), Attributes(),
                            {TensorType(DType::kF32, {2, 3, 4})}, &results)
                   .ok());
}

TEST(Matmul, InferenceOfMatmulPointwise) {
  std::vector<TensorType> results;
  const TensorType a(DType::kBF16, {2, 3}), b(DType::kBF16, {3, 6});
  const auto attributes = [](absl::string_view function) {
    return Attributes().SetString("function", function);
  };
  ASSERT_TRUE(
      InferResults(*MatmulPointwise(), attributes("swiglu"), {a, b}, &results)
          .ok());
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0], TensorType(DType::kBF16, {2, 6}));
  EXPECT_EQ(results[1], TensorType(DType::kBF16, {2, 3}));
  const OpCost cost =
      CostOf(*MatmulPointwise(), attributes("swiglu"), {a, b}, results);
  EXPECT_EQ(cost.matmul_flops, 2 * 2 * 6 * 3);
  EXPECT_EQ(cost.pointwise_flops, 16 * 2 * 3);
  ASSERT_TRUE(InferResults(*MatmulPointwise(),
                           attributes("relu").SetInt("keep", 0), {a, b},
                           &results)
                  .ok());
  EXPECT_EQ(results.size(), 1u);
  EXPECT_THAT(
      InferResults(*MatmulPointwise(), attributes("tanh"), {a, b}, &results)
          .message(),
      ::testing::HasSubstr("function is \"tanh\"; one of gelu, "));
  EXPECT_THAT(InferResults(*MatmulPointwise(), attributes("swiglu"),
                           {a, TensorType(DType::kBF16, {3, 5})}, &results)
                  .message(),
              ::testing::HasSubstr("even number of columns"));
  EXPECT_FALSE(
      InferResults(*MatmulPointwise(), attributes("add"), {a, b}, &results)
          .ok());
  EXPECT_FALSE(
      InferResults(*MatmulPointwise(), attributes("add"), {a, b, a}, &results)
          .ok());
}

TEST(Matmul, CostsAreTheFormula) {
  const Attributes attributes =
      Attributes().SetInt("transpose_a", 1).SetString("dtype", "F32");
  const std::vector<TensorType> operands = {TensorType(DType::kBF16, {5, 3}),
                                            TensorType(DType::kBF16, {5, 7})};
  std::vector<TensorType> results;
  ASSERT_TRUE(InferResults(*Matmul(), attributes, operands, &results).ok());
  const OpCost cost = CostOf(*Matmul(), attributes, operands, results);
  EXPECT_EQ(cost.matmul_flops, 2 * 3 * 7 * 5);
  EXPECT_EQ(cost.bytes, 2 * (5 * 3 + 5 * 7) + 4 * 3 * 7);
}

}  // namespace
}  // namespace shardgraph
