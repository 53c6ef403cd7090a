// Updates of a run of elements of a shard, compiled for each CPU target.
//
// Plain structs only (kernels/cpu/target.h says why). kernels/optimizer/
// optimizer.h has the formulas; the scalars here are those it puts in brackets.
// The bits of an element depend on its inputs alone, not on where in a run it
// is.
#ifndef KERNELS_OPTIMIZER_OPTIMIZER_RUN_H_
#define KERNELS_OPTIMIZER_OPTIMIZER_RUN_H_

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph {

struct OptimizerRun {
  int64_t n = 0;
  float* master = nullptr;
  const float* gradient = nullptr;
  void* moments[2] = {};  // null: not there
  bool rounds = false;    // moments are BF16
  uint64_t key = 0;       // RandomKey of their rounding
  uint64_t stream = 0;
  uint64_t element = 0;                           // its number of element 0
  void* compute = nullptr;                        // null without a compute copy
  ElementType compute_type = ElementType::kBF16;  // F16: baseline target alone
};

struct AdamWScalars {
  float gradient_scale, l2, decay, one_minus_beta1, beta2, one_minus_beta2,
      root_correction2, epsilon, step;
};
using AdamWFunction = void(const AdamWScalars& scalars,
                           const OptimizerRun& run);

struct SgdScalars {
  float gradient_scale, weight_decay, momentum, rate;
};
using SgdFunction = void(const SgdScalars& scalars, const OptimizerRun& run);

struct LionScalars {
  float gradient_scale, decay, rate, beta1, one_minus_beta1, beta2,
      one_minus_beta2;
};
using LionFunction = void(const LionScalars& scalars, const OptimizerRun& run);

// Adds the squares of x[0, n) to sixteen partial sums, x[i] to sums[i % 16].
inline constexpr int kSquareSums = 16;
using AddSquaresFunction = void(const float* x, int64_t n, float* sums);

namespace baseline {
AdamWFunction AdamW;
SgdFunction Sgd;
LionFunction Lion;
AddSquaresFunction AddSquares;
}  // namespace baseline
namespace avx2 {
AdamWFunction AdamW;
SgdFunction Sgd;
LionFunction Lion;
AddSquaresFunction AddSquares;
}  // namespace avx2
namespace avx512 {
AdamWFunction AdamW;
SgdFunction Sgd;
LionFunction Lion;
AddSquaresFunction AddSquares;
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_OPTIMIZER_OPTIMIZER_RUN_H_
