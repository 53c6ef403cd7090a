#include "kernels/rotary_apart.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/target.h"
#include "kernels/cuda/kernels.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2;

// An instance with rotary positions, of strided q and k. Those of the second
// sequence are others than those of the first.
OpCase Instance(bool gradient, DType dtype, int64_t length = 37,
                int64_t width = 16) {
  const auto heads = [&](int64_t count, bool gaps) {
    const Dims shape = {kBatch, length, count, width};
    const int64_t row = (count + (gaps ? 1 : 0)) * width;
    return TensorType(dtype, shape, {length * row, row, width, 1});
  };
  OpCase op_case;
  op_case.op = FindOp(gradient ? "attention_gradient" : "attention");
  op_case.attributes.SetInt("causal", 1)
      .SetInt("has_rotary", 1)
      .SetDouble("theta", 100);
  uint64_t seed = 0;
  const auto draw = [&](const TensorType& type, double low, double high) {
    op_case.operands.push_back(OperandCase(
        type, UniformValues(type.num_elements(), low, high, ++seed)));
  };
  if (gradient) draw(heads(kHeads, false), -1, 1);
  for (const int64_t count : {kHeads, kKvHeads, kKvHeads}) {
    draw(heads(count, true), -1, 1);
    if (gradient)
      op_case.result_strides.push_back(op_case.operands.back().type.strides);
  }
  if (gradient) {
    draw(heads(kHeads, false), -1, 1);
    draw(TensorType(DType::kF32, {kBatch, kHeads, length}), 3, 4);
  }
  std::vector<double> positions;
  for (int64_t n = 0; n < kBatch * length; ++n)
    positions.push_back(5 + n % length + 13 * (n / length));
  op_case.operands.push_back(
      OperandCase(TensorType(DType::kI32, {kBatch * length}), positions));
  op_case.magnitude = gradient ? width : 1;
  op_case.inner_rounding = true;
  return op_case;
}

// The ops that an instance stands for, by kernels of one table.
std::vector<ResultValues> Apart(const OpCase& fused, bool gradient,
                                const KernelTable& table) {
  const int q = gradient ? 1 : 0, positions = gradient ? 6 : 3;
  const auto kernels = [&](const OpCase& op_case) {
    std::vector<TensorType> operands, results;
    for (const OperandCase& operand : op_case.operands)
      operands.push_back(operand.type);
    SG_CHECK_OK(
        InferResults(*op_case.op, op_case.attributes, operands, &results));
    const auto kernel =
        table.Find(op_case.op->name, op_case.attributes, operands, results);
    SG_CHECK_OK(kernel);
    return absl::Span<const KernelDef>(*kernel, 1);
  };
  const auto turned = [&](const OperandCase& x, bool inverse) {
    OpCase rotary;
    rotary.op = FindOp("rotary");
    rotary.attributes.SetDouble("theta", 100).SetInt("inverse", inverse);
    rotary.operands = {x, fused.operands[positions]};
    return Evaluate(rotary, kernels(rotary), false)[0];
  };
  const auto contiguous = [](const TensorType& type) {
    return TensorType(type.dtype, type.shape);
  };
  OpCase attention = fused;
  attention.attributes.SetInt("has_rotary", 0);
  attention.operands.erase(attention.operands.begin() + positions);
  for (int i = q; i < q + 2; ++i) {
    const OperandCase& x = fused.operands[i];
    attention.operands[i] =
        OperandCase(contiguous(x.type), turned(x, /*inverse=*/false));
  }
  std::vector<ResultValues> results =
      Evaluate(attention, kernels(attention), false);
  for (int r = 0; gradient && r < 2; ++r) {
    results[r] =
        turned(OperandCase(contiguous(fused.operands[1 + r].type), results[r]),
               /*inverse=*/true);
  }
  return results;
}

TEST(RotaryApart, GivesTheBitsOfTheOpsApart) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool gradient : {false, true}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(dtype), " gradient ", gradient));
      const OpCase op_case = Instance(gradient, dtype);
      EXPECT_EQ(Evaluate(op_case, RotaryApartKernels<CpuKernels>(), false),
                Apart(op_case, gradient, CpuKernels()));
    }
  }
}

// More than one task and than one block of keys: the attention of each CPU
// target that turns q and k itself gives the bits of the ops apart, on which
// fusing them relies (graph/fusion_table.cc).
TEST(RotaryApart, GivesTheBitsOfAttentionThatTurns) {
  constexpr int64_t kLength = 395;
  for (const CpuTarget target : SupportedCpuTargets()) {
    const CpuTargetOverride use(target);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int64_t width : {64, 70}) {
        for (const bool gradient : {false, true}) {
          SCOPED_TRACE(absl::StrCat(CpuTargetName(target), " ",
                                    DTypeName(dtype), " width ", width,
                                    " gradient ", gradient));
          const OpCase op_case = Instance(gradient, dtype, kLength, width);
          EXPECT_EQ(Evaluate(op_case, AttentionCpuKernels(), false),
                    Evaluate(op_case, RotaryApartKernels<CpuKernels>(), false));
        }
      }
    }
  }
}

TEST(RotaryApart, Conformance) {
  std::vector<OpCase> cases;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const bool gradient : {false, true})
      cases.push_back(Instance(gradient, dtype));
  }
  CheckCpuKernels(cases, AttentionReferenceKernels(),
                  RotaryApartKernels<CpuKernels>());
  CheckCudaKernels(cases, AttentionReferenceKernels(),
                   RotaryApartKernels<CudaKernels>());
}

TEST(RotaryApart, LeavesOtherInstancesToOthers) {
  const TensorType q(DType::kF32, {1, 2, 1, 4});
  EXPECT_TRUE(absl::IsUnimplemented(
      ComposeRotaryApart("attention", Attributes(), {q, q, q},
                         {q, TensorType(DType::kF32, {1, 1, 2})})
          .status()));
}

}  // namespace
}  // namespace shardgraph
