#include "kernels/loss/loss.h"

#include <cmath>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/target.h"
#include "kernels/loss/loss_row.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

const OpDef* Head() { return LossOps()[0]; }
const OpDef* HeadGradient() { return LossOps()[1]; }

struct Shapes {
  DType dtype = DType::kF32;
  int64_t rows = 1;
  int64_t vocabulary = 1;
  int64_t width = 1;
  int64_t chunk_rows = 1;
  std::vector<double> targets;
  double range = 1;
};

OpCase Forward(const Shapes& s) {
  OpCase op_case;
  op_case.op = Head();
  op_case.attributes.SetInt("chunk_rows", s.chunk_rows);
  const TensorType x(s.dtype, {s.rows, s.width});
  const TensorType weight(s.dtype, {s.vocabulary, s.width});
  op_case.operands = {
      OperandCase(x, UniformValues(x.num_elements(), -s.range, s.range, 1)),
      OperandCase(weight,
                  UniformValues(weight.num_elements(), -s.range, s.range, 2)),
      OperandCase(TensorType(DType::kI32, {s.rows}), s.targets)};
  op_case.magnitude = s.rows;
  op_case.inner_rounding = true;
  return op_case;
}

OpCase Backward(const Shapes& s) {
  OpCase op_case = Forward(s);
  op_case.op = HeadGradient();
  op_case.attributes.SetString("dtype", "F32");
  op_case.operands.push_back(
      OperandCase(TensorType(DType::kF32, {}), std::vector<double>{8}));
  op_case.operands.back().fixed_dtype = true;
  op_case.operands.push_back(
      OperandCase(TensorType(DType::kF64, {}), std::vector<double>{4}));
  return op_case;
}

// Targets of all kinds: every third row is masked.
std::vector<double> SomeTargets(int64_t rows, int64_t vocabulary) {
  std::vector<double> targets;
  for (int64_t n = 0; n < rows; ++n)
    targets.push_back(n % 3 == 2 ? kMaskedTarget : n * 7 % vocabulary);
  return targets;
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::vector<Shapes> all_shapes = {
        {dtype, 0, 5, 3, 4, {}},
        {dtype, 1, 1, 1, 1, {0}},
        {dtype, 2, 7, 0, 2, {6, 3}},
        {dtype, 2, 7, 4, 1, {kMaskedTarget, kMaskedTarget}},
        {dtype, 10, 131, 36, 4, SomeTargets(10, 131)},
        {dtype, 10, 131, 36, 100, SomeTargets(10, 131)},
        {dtype, 65, 300, 20, 32, SomeTargets(65, 300), 3},
    };
    for (const Shapes& shapes : all_shapes) {
      cases.push_back(Forward(shapes));
      OpCase backward = Backward(shapes);
      cases.push_back(backward);
      for (const int64_t omit : {0b010, 0b100, 0b110}) {
        OpCase frozen = backward;
        frozen.attributes.SetInt("omit", omit);
        cases.push_back(frozen);
      }
      backward.attributes.SetInt("accumulate", 0b100);
      backward.operands.push_back(
          TensorType(DType::kF32, {shapes.vocabulary, shapes.width}));
      cases.push_back(backward);
    }
    for (const auto& [smoothing, z_loss] :
         {std::pair(0.1, 0.0), std::pair(0.0, 1e-2), std::pair(0.2, 1e-3)}) {
      OpCase forward = Forward({dtype, 10, 131, 36, 4, SomeTargets(10, 131)});
      OpCase backward = Backward({dtype, 10, 131, 36, 4, SomeTargets(10, 131)});
      for (OpCase* op_case : {&forward, &backward}) {
        op_case->attributes.SetDouble("label_smoothing", smoothing)
            .SetDouble("z_loss", z_loss);
        cases.push_back(*op_case);
      }
    }
    // A dweight in the compute dtype.
    OpCase same = Backward({dtype, 10, 31, 36, 16, SomeTargets(10, 31)});
    same.attributes.SetString("dtype", DTypeName(dtype));
    cases.push_back(same);
  }
  cases.push_back(Backward({DType::kF64, 4, 9, 5, 3, SomeTargets(4, 9)}));
  return cases;
}

std::vector<TestKernels> Backends() {
  return {LossReferenceKernels(), LossCpuKernels(), OnCuda(LossCudaKernels())};
}

TEST(Loss, Reference) {
  CheckKernels(Cases(), LossReferenceKernels(), LossReferenceKernels());
}

TEST(Loss, Cpu) {
  CheckCpuKernels(Cases(), LossReferenceKernels(), LossCpuKernels());
}

TEST(Loss, Cuda) {
  CheckCudaKernels(Cases(), LossReferenceKernels(), LossCudaKernels());
}

TEST(Loss, EveryOpHasCasesAndKernels) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(LossOps()));
  EXPECT_EQ(CoveredOps(LossReferenceKernels()), NamesOf(LossOps()));
  EXPECT_EQ(CoveredOps(LossCpuKernels()), NamesOf(LossOps()));
  EXPECT_EQ(CoveredOps(LossCudaKernels()), NamesOf(LossOps()));
}

TEST(Loss, UniformLogitsCostTheLogOfTheVocabulary) {
  OpCase op_case = Forward({DType::kF32, 3, 50, 4, 2, {1, kMaskedTarget, 49}});
  op_case.operands[0].values.assign(12, 0.0);
  const auto results = Evaluate(op_case, LossReferenceKernels(), true);
  EXPECT_NEAR(results[0][0], 2 * std::log(50.0), 1e-12);
  EXPECT_EQ(results[0][1], 2);
}

TEST(Loss, HugeLogitsStayFinite) {
  OpCase op_case = Forward({DType::kF32, 2, 2, 1, 2, {0, 1}});
  op_case.operands[0].values = {1000, 1000};
  op_case.operands[1].values = {1, -1};
  for (const TestKernels& kernels : Backends())
    EXPECT_EQ(Evaluate(op_case, kernels, false)[0], (ResultValues{2000, 2}));
}

// In FP64, the derivative of 8 / 4 * loss by central differences.
void CheckDerivative(const Attributes& more) {
  const Shapes shapes = {DType::kF64, 5, 6, 3, 2, SomeTargets(5, 6)};
  const auto with = [&](OpCase op_case) {
    op_case.attributes
        .SetDouble("label_smoothing", more.Double("label_smoothing"))
        .SetDouble("z_loss", more.Double("z_loss"));
    return op_case;
  };
  const auto gradients =
      Evaluate(with(Backward(shapes)), LossReferenceKernels(), true);
  for (int operand = 0; operand < 2; ++operand) {
    OpCase forward = with(Forward(shapes));
    std::vector<double>& values = forward.operands[operand].values;
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = values[i];
      const double step = 1e-5;
      values[i] = value + step;
      double difference = Evaluate(forward, LossReferenceKernels(), true)[0][0];
      values[i] = value - step;
      difference -= Evaluate(forward, LossReferenceKernels(), true)[0][0];
      values[i] = value;
      EXPECT_NEAR(gradients[1 + operand][i], 2 * difference / (2 * step), 1e-8)
          << "operand " << operand << " element " << i;
    }
  }
}

TEST(LossGradient, MatchesFiniteDifferences) {
  CheckDerivative(Attributes());
  CheckDerivative(Attributes().SetDouble("label_smoothing", 0.3));
  CheckDerivative(Attributes().SetDouble("z_loss", 0.05));
}

TEST(Loss, TheChunkSizeDoesNotChangeTheBits) {
  Shapes shapes = {DType::kBF16, 20, 90, 24, 20, SomeTargets(20, 90)};
  for (const TestKernels& kernels :
       {TestKernels(LossCpuKernels()), OnCuda(LossCudaKernels())}) {
    shapes.chunk_rows = 20;
    const auto whole = Evaluate(Backward(shapes), kernels, false);
    shapes.chunk_rows = 7;
    const auto pieces = Evaluate(Backward(shapes), kernels, false);
    EXPECT_EQ(whole[0], pieces[0]);
    EXPECT_EQ(whole[1], pieces[1]);  // dweight is summed by chunks
  }
}

TEST(Loss, LeavingAGradientOutChangesNoOther) {
  const Shapes shapes = {DType::kBF16, 20, 90, 24, 7, SomeTargets(20, 90)};
  for (const TestKernels& kernels : Backends()) {
    const auto all = Evaluate(Backward(shapes), kernels, false);
    for (const int64_t omit : {0b010, 0b100, 0b110}) {
      OpCase op_case = Backward(shapes);
      op_case.attributes.SetInt("omit", omit);
      const auto some = Evaluate(op_case, kernels, false);
      for (int r = 0; r < 3; ++r)
        EXPECT_EQ(some[r], omit >> r & 1 ? ResultValues() : all[r]) << r;
    }
  }
}

TEST(Loss, AGradientLeftOutCostsNothing) {
  OpCase op_case = Backward({DType::kF32, 4, 9, 5, 3, SomeTargets(4, 9)});
  const auto flops = [&](int64_t omit) {
    op_case.attributes.SetInt("omit", omit);
    std::vector<TensorType> operands, results;
    for (const OperandCase& operand : op_case.operands)
      operands.push_back(operand.type);
    EXPECT_TRUE(
        InferResults(*op_case.op, op_case.attributes, operands, &results).ok());
    return CostOf(*op_case.op, op_case.attributes, operands, results)
        .matmul_flops;
  };
  EXPECT_EQ(flops(0), 6 * 4 * 9 * 5);
  EXPECT_EQ(flops(0b100), 4 * 4 * 9 * 5);
  EXPECT_EQ(flops(0b110), 2 * 4 * 9 * 5);
}

TEST(LossDeathTest, TheReferenceRefusesATargetOutOfRange) {
  OpCase op_case = Forward({DType::kF32, 1, 5, 2, 1, {5}});
  EXPECT_DEATH(Evaluate(op_case, LossReferenceKernels(), false),
               "target 5 of row 0 is not in \\[0, 5\\)");
  for (const TestKernels& kernels :
       {TestKernels(LossCpuKernels()), OnCuda(LossCudaKernels())})
    EXPECT_EQ(Evaluate(op_case, kernels, false)[0], (ResultValues{0, 0}));
}

// Large logits take no digits from probabilities.
TEST(LossRow, EveryTargetAgrees) {
  constexpr float kLargest = 600;
  std::vector<float> z(53);
  double sum = 0;
  for (size_t i = 0; i < z.size(); ++i) {
    z[i] = kLargest - static_cast<float>(i * 37 % 53) * 4;
    sum += std::exp(z[i] - kLargest);
  }
  const double log_sum = std::log(sum);
  for (const CpuTarget target : SupportedCpuTargets()) {
    const LogSum row = ForTarget(target, &baseline::LogSumExp, &avx2::LogSumExp,
                                 &avx512::LogSumExp)(z.data(), false, z.size());
    EXPECT_EQ(row.max, kLargest);
    EXPECT_NEAR(row.log_sum, log_sum, 1e-6);
    EXPECT_NEAR(
        ForTarget(target, &baseline::SumBelow, &avx2::SumBelow,
                  &avx512::SumBelow)(z.data(), false, z.size(), row.max),
        -4.0 * 53 * 52 / 2, 1e-2);
    std::vector<float> p = z;
    ForTarget(target, &baseline::ScaledSoftmax, &avx2::ScaledSoftmax,
              &avx512::ScaledSoftmax)(p.data(), false, p.size(), row, 3, 0.5f);
    for (size_t i = 0; i < z.size(); ++i) {
      const double truth = 3 * std::exp(z[i] - kLargest - log_sum) + 0.5;
      EXPECT_NEAR(p[i], truth, 1e-6);
    }
  }
}

TEST(Loss, InferenceNamesWhatIsWrong) {
  std::vector<TensorType> results;
  const TensorType x(DType::kF32, {4, 3});
  const TensorType targets(DType::kI32, {4});
  const absl::Status status =
      InferResults(*Head(), Attributes(),
                   {x, TensorType(DType::kF32, {9, 3}), targets}, &results);
  EXPECT_EQ(status.message(),
            "cross_entropy_head: attribute chunk_rows is 0, must be at least "
            "1");
  const Attributes chunks = Attributes().SetInt("chunk_rows", 2);
  Attributes smooth = chunks;
  smooth.SetDouble("label_smoothing", 1);
  EXPECT_EQ(
      InferResults(*Head(), smooth,
                   {x, TensorType(DType::kF32, {9, 3}), targets}, &results)
          .message(),
      "cross_entropy_head: attribute label_smoothing is 1, must be in "
      "[0, 1)");
  EXPECT_FALSE(InferResults(*Head(), chunks,
                            {x, TensorType(DType::kF32, {9, 4}), targets},
                            &results)
                   .ok());
  EXPECT_FALSE(InferResults(*Head(), chunks, {x, x, x}, &results).ok());
  EXPECT_TRUE(InferResults(*Head(), chunks,
                           {x, TensorType(DType::kF32, {9, 3}), targets},
                           &results)
                  .ok());
}

}  // namespace
}  // namespace shardgraph
