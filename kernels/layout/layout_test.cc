#include "kernels/layout/layout.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

OpCase Fill(absl::string_view dtype, std::vector<int64_t> shape, double value,
            Dims strides = {}) {
  OpCase op_case;
  op_case.op = LayoutOps()[0];
  op_case.attributes.SetString("dtype", dtype)
      .SetInts("shape", std::move(shape))
      .SetDouble("value", value);
  op_case.result_strides = {strides};
  return op_case;
}

OpCase KvWrite(DType dtype, int64_t rows, int64_t position, Dims strides) {
  OpCase op_case;
  op_case.op = LayoutOps()[1];
  op_case.operands = {TensorType(dtype, {2, 6, 3, 4}),
                      TensorType(dtype, {2, rows, 3, 4}, strides),
                      OperandCase(TensorType(DType::kI64, {}),
                                  {static_cast<double>(position)})};
  return op_case;
}

OpCase TakeShard(DType dtype, int64_t n, int rank, int size) {
  OpCase op_case;
  op_case.op = LayoutOps()[2];
  op_case.attributes.SetString("group", "shard").SetInt("size", size);
  op_case.operands = {TensorType(dtype, {n})};
  op_case.rank = rank;
  op_case.group_size = size;
  return op_case;
}

std::vector<OpCase> Cases() {
  std::vector<OpCase> cases;
  for (const char* dtype : {"F32", "BF16", "F16"}) {
    cases.push_back(Fill(dtype, {}, 0.1));
    cases.push_back(Fill(dtype, {3, 0}, 1));
    cases.push_back(Fill(dtype, {40000}, -2.5));
    cases.push_back(Fill(dtype, {2, 3, 5}, 7, {40, 9, 1}));
  }
  cases.push_back(Fill("U8", {3, 5}, 200, {9, 1}));
  cases.push_back(Fill("I64", {3, 5}, -7, {9, 1}));
  // Rows that allow 16-byte accesses, with something left at their ends.
  cases.push_back(Fill("U8", {3, 37}, 200, {48, 1}));
  cases.push_back(Fill("BF16", {2, 3, 21}, 0.1, {96, 24, 1}));
  cases.push_back(Fill("F32", {2, 3, 21}, 0.1, {96, 24, 1}));
  cases.push_back(Fill("I64", {3, 7}, -7, {8, 1}));
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const int64_t position : {0, 2, 5, 6, 100}) {
      cases.push_back(KvWrite(dtype, 1, position, {12, 12, 4, 1}));
      cases.push_back(KvWrite(dtype, 3, position, {100, 30, 5, 1}));
    }
    cases.push_back(KvWrite(dtype, 0, 3, {0, 12, 4, 1}));
    for (int rank = 0; rank < 3; ++rank)
      cases.push_back(TakeShard(dtype, 21, rank, 3));
    cases.push_back(TakeShard(dtype, 100000, 1, 2));
    cases.push_back(TakeShard(dtype, 0, 1, 2));
    cases.push_back(TakeShard(dtype, 7, 0, 1));
  }
  return cases;
}

std::vector<TestKernels> Backends() {
  return {LayoutReferenceKernels(), LayoutCpuKernels(),
          OnCuda(LayoutCudaKernels())};
}

TEST(Layout, Reference) {
  CheckKernels(Cases(), LayoutReferenceKernels(), LayoutReferenceKernels());
}

TEST(Layout, Cpu) {
  CheckKernels(Cases(), LayoutReferenceKernels(), LayoutCpuKernels());
}

TEST(Layout, Cuda) {
  CheckCudaKernels(Cases(), LayoutReferenceKernels(), LayoutCudaKernels());
}

TEST(Layout, CasesAreComplete) {
  EXPECT_EQ(CoveredOps(Cases()), NamesOf(LayoutOps()));
  EXPECT_EQ(CoveredOps(LayoutReferenceKernels()), NamesOf(LayoutOps()));
  EXPECT_EQ(CoveredOps(LayoutCpuKernels()), NamesOf(LayoutOps()));
  EXPECT_EQ(CoveredOps(LayoutCudaKernels()), NamesOf(LayoutOps()));
}

TEST(Fill, EveryDType) {
  for (const TestKernels& kernels : Backends()) {
    for (const char* dtype :
         {"F32", "BF16", "F16", "F64", "I32", "I64", "U8", "U16", "U32"}) {
      EXPECT_EQ(Evaluate(Fill(dtype, {3}, 200), kernels, false)[0],
                (std::vector<double>{200, 200, 200}))
          << dtype;
    }
    EXPECT_EQ(Evaluate(Fill("I32", {1}, -1), kernels, false)[0][0], -1);
  }
}

TEST(KvWrite, WritesRowsFromThePositionOn) {
  OpCase op_case = KvWrite(DType::kF32, 2, 5, {24, 12, 4, 1});
  op_case.operands[0].values.assign(2 * 6 * 12, 1);
  op_case.operands[1].values.assign(2 * 2 * 12, 2);
  for (const TestKernels& kernels : Backends()) {
    const auto cache = Evaluate(op_case, kernels, false)[0];
    for (int i = 0; i < 2 * 6 * 12; ++i)
      EXPECT_EQ(cache[i], i / 12 % 6 == 5 ? 2 : 1);  // the row behind is lost
  }
}

// The pieces of all ranks make up the whole.
TEST(TakeShard, TakesThePieceOfTheRank) {
  for (const TestKernels& kernels : Backends()) {
    for (int rank = 0; rank < 4; ++rank) {
      OpCase op_case = TakeShard(DType::kBF16, 12, rank, 4);
      for (int i = 0; i < 12; ++i) op_case.operands[0].values.push_back(i);
      const double first = 3.0 * rank;
      EXPECT_EQ(Evaluate(op_case, kernels, false)[0],
                (std::vector<double>{first, first + 1, first + 2}));
    }
  }
}

TEST(Layout, RefusesWhatDoesNotFit) {
  std::vector<TensorType> results;
  const auto infer = [&](const OpCase& op_case) {
    std::vector<TensorType> types;
    for (const OperandCase& operand : op_case.operands)
      types.push_back(operand.type);
    return std::string(
        InferResults(*op_case.op, op_case.attributes, types, &results)
            .message());
  };
  EXPECT_EQ(infer(Fill("F33", {1}, 0)),
            "fill: attribute dtype is \"F33\", must be a dtype such as F32");
  EXPECT_EQ(infer(Fill("I32", {1}, 0.5)),
            "fill: attribute value is 0.5, must be an integer for I32");
  EXPECT_EQ(infer(Fill("F32", {2, -1}, 0)),
            "fill: attribute shape holds -1, sizes must not be negative");
  OpCase wrong = KvWrite(DType::kF32, 1, 0, {12, 12, 4, 1});
  wrong.operands[1].type = TensorType(DType::kF32, {2, 1, 2, 4});
  EXPECT_EQ(infer(wrong),
            "kv_write: new is F32[2,1,2,4], must be F32[2,*,3,4]");
  for (const int size : {0, 2}) {
    EXPECT_EQ(infer(TakeShard(DType::kBF16, 7, 0, size)),
              absl::StrCat("take_shard: attribute size is ", size,
                           ", must be at least 1 and divide full, which is "
                           "BF16[7]"));
  }
}

}  // namespace
}  // namespace shardgraph
