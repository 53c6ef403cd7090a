// Pointwise functions of a run of elements, compiled for each CPU target.
//
// F16 is for the baseline target alone. Plain structs only
// (kernels/cpu/target.h says why). The bits of an element
// depend on its inputs alone, not on where in a run it is.
#ifndef KERNELS_POINTWISE_POINTWISE_RUN_H_
#define KERNELS_POINTWISE_POINTWISE_RUN_H_

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph {

// The functions of kernels/pointwise/pointwise.h, which defines them. Gradients
// take (dy, x), or (dy, gate, up).
enum class Pointwise : uint8_t {
  kAdd,
  kGeluTanh,
  kGeluErf,
  kSilu,
  kRelu,
  kGeluTanhGradient,
  kGeluErfGradient,
  kSiluGradient,
  kReluGradient,
  kSwiglu,
  kSwigluGradient,
  kScale,
  kCast,
  kCastAdd,  // out += in
};

struct PointwiseRun {
  Pointwise function = Pointwise::kAdd;
  ElementType type = ElementType::kF32;     // of in, and of out but for casts
  ElementType to_type = ElementType::kF32;  // of casts
  float factor = 1;                         // of kScale
  int64_t n = 0;
  const void* in[3] = {};
  void* out[2] = {};  // overlaps no input
};

using PointwiseRunFunction = void(const PointwiseRun& run);

namespace baseline {
PointwiseRunFunction RunPointwise;
}
namespace avx2 {
PointwiseRunFunction RunPointwise;
}
namespace avx512 {
PointwiseRunFunction RunPointwise;
}

}  // namespace shardgraph

#endif  // KERNELS_POINTWISE_POINTWISE_RUN_H_
