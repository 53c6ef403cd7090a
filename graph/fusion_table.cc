// The patterns.
//
// Note: measured on AVX2, one thread, against the nodes they replace. Sum with
// norm: even in cache, a few percent less where the tensors leave it. Product
// with swiglu: even. Products with gelu were even, with its gradient slower,
// with add no better than add with norm: those are left apart, but for targets
// whose library has them as epilogues. Rotary positions within attention: even
// on AVX2 and AVX-512, with 5 to 8 % less memory for activations of Llamas.
#include <string>
#include <vector>

#include "graph/fusion.h"

namespace shardgraph {

absl::Span<const FusionPattern> FusionPatterns() {
  static constexpr FusionPattern patterns[] = {
      {.name = "add_layer_norm",
       .replaces = "sum = add(a, b);"
                   "y, mean, rstd = layer_norm(sum, weight...)",
       .by = "sum, y, mean, rstd = add_layer_norm(a, b, weight...)"},
      {.name = "add_rms_norm",
       .replaces = "sum = add(a, b); y, rstd = rms_norm(sum, weight)",
       .by = "sum, y, rstd = add_rms_norm(a, b, weight)"},
      {.name = "matmul_swiglu",
       .replaces = "y = matmul(a, b...); z = swiglu(y.left, y.right)",
       .by = "y, z = matmul_pointwise(a, b...) function=swiglu"},
      // q and k are turned where they are read, and again for the gradient,
      // which turns back what it writes: turned ones are not kept in between.
      {.name = "rotary_attention",
       .replaces = "*turned_q = rotary(q, positions) inverse=0;"
                   "*turned_k = rotary(k, positions) inverse=0;"
                   "out, lse = attention(turned_q, turned_k, v, rest...)"
                   "  has_rotary=0 has_offset=0",
       .by = "out, lse = attention(q, k, v, positions, rest...) has_rotary=1",
       .by_target = true},
      {.name = "rotary_attention_gradient",
       .replaces = "*turned_q = rotary(q, positions) inverse=0;"
                   "*turned_k = rotary(k, positions) inverse=0;"
                   "turned_dq, turned_dk, dv = attention_gradient("
                   "  dout, turned_q, turned_k, v, out, lse, rest...)"
                   "  has_rotary=0;"
                   "dq = rotary(turned_dq, positions) inverse=1;"
                   "dk = rotary(turned_dk, positions) inverse=1",
       .by = "dq, dk, dv = attention_gradient("
             "  dout, q, k, v, out, lse, positions, rest...)"
             "  has_rotary=1 inverse=0",
       .by_target = true},
      // The library's GELU is the tanh form.
      {.name = "matmul_gelu",
       .replaces = "y = matmul(a, b...); z = gelu(y) tanh=1",
       .by = "y, z = matmul_pointwise(a, b...) function=gelu",
       .by_target = true},
      {.name = "matmul_gelu_gradient",
       .replaces = "dz = matmul(a, b); dy = gelu_gradient(dz, y) tanh=1",
       .by = "dy = matmul_pointwise(a, b, y) function=gelu_gradient keep=0",
       .by_target = true},
      // The gradients of a linear layer: of weights [out, in] and [in, out].
      {.name = "matmul_column_sum",
       .replaces = "dw = matmul(dy, x) transpose_a=1; db = column_sum(dy)",
       .by = "dw, db = matmul_column_sum(dy, x) sum=a",
       .by_target = true},
      {.name = "matmul_column_sum_input_major",
       .replaces = "dw = matmul(x, dy) transpose_a=1; db = column_sum(dy)",
       .by = "dw, db = matmul_column_sum(x, dy) sum=b",
       .by_target = true},
  };
  return patterns;
}

std::vector<std::string> FusionsByTarget() {
  std::vector<std::string> names;
  for (const FusionPattern& pattern : FusionPatterns()) {
    if (pattern.by_target) names.push_back(std::string(pattern.name));
  }
  return names;
}

}  // namespace shardgraph
