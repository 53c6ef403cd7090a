#include "graph/gradients/gradients.h"

namespace shardgraph {
namespace {

// y = A B + bias, with A = a or transpose(a), B = b or transpose(b):
// dA = dy transpose(B), dB = transpose(A) dy, dbias = column sums of dy.
// Weight gradients come first: after them `a` is free, before da is made.
absl::Status Matmul(GradientContext& context) {
  const bool transpose_a = context.node().attributes.Int("transpose_a") != 0;
  const bool transpose_b = context.node().attributes.Int("transpose_b") != 0;
  const ValueId a = context.operand(0), b = context.operand(1);
  const ValueId dy = context.gradient(0);
  const auto emit = [&](ValueId left, bool transpose_left, ValueId right,
                        bool transpose_right, int contributes) {
    Attributes attributes;
    if (transpose_left) attributes.SetInt("transpose_a", 1);
    if (transpose_right) attributes.SetInt("transpose_b", 1);
    SetGradientDType(context, contributes, context.builder().type(left).dtype,
                     &attributes);
    context.Emit("matmul", {left, right}, std::move(attributes), {contributes});
  };
  if (context.needs(1)) {
    if (transpose_b) {
      emit(dy, true, a, transpose_a, 1);
    } else {
      emit(a, !transpose_a, dy, false, 1);
    }
  }
  if (context.node().attributes.Int("bias") != 0 && context.needs(2)) {
    Attributes attributes;
    SetGradientDType(context, 2, context.builder().type(dy).dtype, &attributes);
    context.Emit("column_sum", {dy}, std::move(attributes), {2});
  }
  if (context.needs(0)) {
    if (transpose_a) {
      emit(b, transpose_b, dy, true, 0);
    } else {
      emit(dy, false, b, !transpose_b, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const GradientRule> MatmulGradientRules() {
  static constexpr GradientRule rules[] = {{.op = "matmul", .apply = Matmul}};
  return rules;
}

}  // namespace shardgraph
