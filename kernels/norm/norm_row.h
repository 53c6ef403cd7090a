// Norms of one row and their gradients, compiled for each CPU target.
//
// Plain structs only (kernels/cpu/target.h says why). kernels/norm/norm.h has
// the formulas. Rows are contiguous.
#ifndef KERNELS_NORM_NORM_ROW_H_
#define KERNELS_NORM_NORM_ROW_H_

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph {

// What all rows have in common.
struct NormRows {
  ElementType type = ElementType::kF32;  // F16: baseline target alone
  int64_t columns = 0;
  bool centered = false;         // layer norm; else RMS norm
  float epsilon = 0;             // forward
  const void* weight = nullptr;  // [columns]
  const void* bias = nullptr;    // [columns] or null; forward of layer norm
  bool accumulate = false;       // gradient: add to dx
};

struct NormStatistics {
  float mean = 0;  // layer norm
  float rstd = 0;
};

// y from x; the row's statistics.
using NormForwardFunction = NormStatistics(const NormRows& rows, const void* x,
                                           void* y);

// dx from dy and x. Adds to dweight and dbias: sums over rows. What is null is
// left out.
using NormGradientFunction = void(const NormRows& rows, const void* dy,
                                  const void* x, NormStatistics statistics,
                                  void* dx, float* dweight, float* dbias);

namespace baseline {
NormForwardFunction NormForward;
NormGradientFunction NormGradient;
}  // namespace baseline
namespace avx2 {
NormForwardFunction NormForward;
NormGradientFunction NormGradient;
}  // namespace avx2
namespace avx512 {
NormForwardFunction NormForward;
NormGradientFunction NormGradient;
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_NORM_NORM_ROW_H_
