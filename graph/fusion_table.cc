// The patterns.
//
// Note: measured on AVX2, one thread, against the nodes they replace. Sum with
// norm: even in cache, a few percent less where the tensors leave it. Product
// with swiglu: even. Products with gelu were even, with its gradient slower,
// with add no better than add with norm: those are left apart, but for targets
// whose library has them as epilogues.
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
