// The patterns: what was found to be faster fused on some target. Products with
// gelu or its gradient behind them, and products with add (in place of add with
// norm), gave nothing on AVX2 and are left apart.
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
  };
  return patterns;
}

}  // namespace shardgraph
