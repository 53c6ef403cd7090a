#include "kernels/random/dropout.h"

#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/random/random.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

OpCase Case(DType dtype, int64_t rows, int64_t columns, double rate,
            int64_t run_step = 11) {
  OpCase op_case;
  op_case.op = RandomOps()[0];
  op_case.attributes.SetDouble("rate", rate)
      .SetInt("seed", 1234)
      .SetInt("key", static_cast<int64_t>(HashName("layers.3.mlp/dropout")));
  op_case.operands = {TensorType(dtype, {rows, columns}),
                      OperandCase(TensorType(DType::kI64, {rows}), -5, 1 << 30),
                      OperandCase(TensorType(DType::kI64, {}),
                                  {static_cast<double>(run_step)})};
  return op_case;
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    cases.push_back(Case(dtype, 0, 8, 0.1));
    cases.push_back(Case(dtype, 3, 0, 0.1));
    cases.push_back(Case(dtype, 1, 1, 0.5));
    cases.push_back(Case(dtype, 5, 7, 0.5));
    cases.push_back(Case(dtype, 2, 64, 0));
    cases.push_back(Case(dtype, 3, 9001, 0.1));
  }
  return cases;
}

TEST(Dropout, Reference) {
  CheckKernels(Cases(), RandomReferenceKernels(), RandomReferenceKernels());
}

TEST(Dropout, Cpu) {
  CheckCpuKernels(Cases(), RandomReferenceKernels(), RandomCpuKernels());
}

TEST(Dropout, Cuda) {
  CheckCudaKernels(Cases(), RandomReferenceKernels(), RandomCudaKernels());
}

TEST(Dropout, CasesAreComplete) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(RandomOps()));
  EXPECT_EQ(CoveredOps(RandomReferenceKernels()), NamesOf(RandomOps()));
  EXPECT_EQ(CoveredOps(RandomCpuKernels()), NamesOf(RandomOps()));
  EXPECT_EQ(CoveredOps(RandomCudaKernels()), NamesOf(RandomOps()));
}

// Which elements a case keeps, of all-ones rows with the given sequence ids.
std::vector<double> Kept(OpCase op_case, std::vector<double> sequence_ids) {
  const int64_t rows = sequence_ids.size();
  const int64_t columns = op_case.operands[0].type.dim(1);
  op_case.operands[0] = OperandCase(TensorType(DType::kF32, {rows, columns}),
                                    std::vector<double>(rows * columns, 1.0));
  op_case.operands[1] =
      OperandCase(TensorType(DType::kI64, {rows}), sequence_ids);
  return Evaluate(op_case, RandomCpuKernels(), false)[0];
}

TEST(Dropout, KeepsTheMean) {
  constexpr int64_t n = 100000;
  constexpr double rate = 0.1;
  const auto y = Kept(Case(DType::kF32, 1, n, rate), {3});
  double sum = 0;
  for (const double value : y) {
    EXPECT_TRUE(value == 0 || std::abs(value - 1 / 0.9) < 1e-6);
    sum += value;
  }
  EXPECT_NEAR(sum / n, 1, 6 * std::sqrt(rate / (1 - rate) / n));
}

TEST(Dropout, DependsOnStepKeySeedAndSequenceAlone) {
  const OpCase base = Case(DType::kF32, 1, 64, 0.5, 7);
  const auto kept = Kept(base, {5});
  // The row of a batch does not matter, its sequence does.
  const auto batch = Kept(base, {8, 5});
  EXPECT_EQ(std::vector<double>(batch.begin() + 64, batch.end()), kept);
  EXPECT_NE(std::vector<double>(batch.begin(), batch.begin() + 64), kept);
  EXPECT_NE(Kept(Case(DType::kF32, 1, 64, 0.5, 8), {5}), kept);
  OpCase other = base;
  other.attributes.SetInt("key", 1);
  EXPECT_NE(Kept(other, {5}), kept);
  other = base;
  other.attributes.SetInt("seed", 1235);
  EXPECT_NE(Kept(other, {5}), kept);
}

TEST(Dropout, RefusesARateThatDropsAll) {
  std::vector<TensorType> results;
  const std::vector<TensorType> operands = {TensorType(DType::kF32, {2, 3}),
                                            TensorType(DType::kI64, {2}),
                                            TensorType(DType::kI64, {})};
  for (const double rate : {1.0, -0.1, std::nan("")}) {
    EXPECT_FALSE(InferResults(*RandomOps()[0],
                              Attributes().SetDouble("rate", rate), operands,
                              &results)
                     .ok());
  }
}

}  // namespace
}  // namespace shardgraph
