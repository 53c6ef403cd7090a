// F16 by way of F32, on both backends, against the references.
#include "kernels/widened.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/attention/attention.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cuda/kernels.h"
#include "kernels/loss/loss.h"
#include "kernels/matmul/matmul.h"
#include "kernels/op_table.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/testing/conformance.h"
#include "kernels/testing/cuda_conformance.h"

namespace shardgraph {
namespace {

TensorType Half(Dims shape) { return TensorType(DType::kF16, shape); }

OpCase Case(absl::string_view op, Attributes attributes,
            std::vector<OperandCase> operands) {
  OpCase op_case;
  op_case.op = FindOp(op);
  op_case.attributes = std::move(attributes);
  op_case.operands = std::move(operands);
  op_case.inner_rounding = true;
  return op_case;
}

struct Family {
  absl::Span<const KernelDef> reference;
  std::vector<OpCase> cases;
};

std::vector<Family> Families() {
  // A strided operand; a result that adds to one in F16; one in F32.
  OpCase strided =
      Case("matmul", Attributes().SetInt("transpose_b", 1),
           {TensorType(DType::kF16, {5, 7}, {9, 1}), Half({3, 7})});
  strided.result_strides = {{4, 1}};
  const OpCase adding = Case("matmul", Attributes().SetInt("accumulate", 1),
                             {Half({5, 7}), Half({7, 3}), Half({5, 3})});
  const OpCase to_f32 = Case(
      "matmul", Attributes().SetString("dtype", "F32").SetInt("accumulate", 1),
      {Half({5, 7}), Half({7, 3}), TensorType(DType::kF32, {5, 3})});
  const OpCase none =
      Case("matmul", Attributes(), {Half({0, 7}), Half({7, 3})});

  const Attributes causal = Attributes().SetInt("causal", 1);
  const TensorType q = Half({2, 5, 2, 8});
  const OpCase attention = Case("attention", causal, {q, q, q});
  OpCase head = Case(
      "cross_entropy_head_gradient",
      Attributes().SetInt("chunk_rows", 3).SetString("dtype", "F32"),
      {Half({7, 6}), Half({11, 6}),
       OperandCase(TensorType(DType::kI32, {7}), {0, 3, -100, 10, 5, 5, 1}),
       OperandCase(TensorType(DType::kF32, {}), std::vector<double>{8}),
       OperandCase(TensorType(DType::kF64, {}), std::vector<double>{4})});
  head.operands[3].fixed_dtype = true;
  head.magnitude = 7;
  OpCase frozen = head;
  frozen.attributes.SetInt("omit", 0b010);

  OpCase gates = Case("swiglu_gradient", Attributes(),
                      {Half({3, 10}), Half({3, 10}), Half({3, 10})});
  gates.result_strides = {{20, 1}, {20, 1}};
  const OpCase sums = Case("matmul_column_sum",
                           Attributes()
                               .SetInt("transpose_a", 1)
                               .SetString("sum", "b")
                               .SetString("dtype", "F32"),
                           {Half({7, 5}), Half({7, 3})});
  return {{MatmulReferenceKernels(), {strided, adding, to_f32, none, sums}},
          {AttentionReferenceKernels(), {attention}},
          {LossReferenceKernels(), {head, frozen}},
          {PointwiseReferenceKernels(), {gates}}};
}

void ExpectTaken(const OpCase& op_case, absl::Span<const KernelDef> kernels) {
  std::vector<TensorType> operands, results;
  for (const OperandCase& operand : op_case.operands)
    operands.push_back(operand.type);
  ASSERT_TRUE(
      InferResults(*op_case.op, op_case.attributes, operands, &results).ok());
  const auto found = KernelTable({kernels}).Find(
      op_case.op->name, op_case.attributes, operands, results);
  EXPECT_TRUE(found.ok()) << found.status();
}

TEST(Widened, Cpu) {
  for (const Family& family : Families()) {
    for (const OpCase& op_case : family.cases)
      ExpectTaken(op_case, WidenedKernels<CpuKernels>());
    CheckCpuKernels(family.cases, family.reference,
                    WidenedKernels<CpuKernels>());
  }
}

TEST(Widened, Cuda) {
  for (const Family& family : Families()) {
    for (const OpCase& op_case : family.cases)
      ExpectTaken(op_case, WidenedKernels<CudaKernels>());
    CheckCudaKernels(family.cases, family.reference,
                     WidenedKernels<CudaKernels>());
  }
}

TEST(Widened, LeavesOtherTypesToOthers) {
  const TensorType f32(DType::kF32, {4, 4});
  EXPECT_TRUE(absl::IsUnimplemented(
      ComposeWidened("add", Attributes(), {f32, f32}, {f32}).status()));
}

}  // namespace
}  // namespace shardgraph
