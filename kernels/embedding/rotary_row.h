// Rotary embedding of the heads of one position, compiled for each CPU target.
//
// Plain structs only (kernels/cpu/target.h says why). kernels/embedding/
// embedding.h has the formulas.
#ifndef KERNELS_EMBEDDING_ROTARY_ROW_H_
#define KERNELS_EMBEDDING_ROTARY_ROW_H_

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph {

// Head h begins at element h * stride and has 2 * half elements.
struct RotaryRow {
  ElementType type = ElementType::kF32;  // F16: baseline target alone
  int64_t heads = 0;
  int64_t half = 0;
  const void* x = nullptr;
  int64_t x_stride = 0;
  void* y = nullptr;
  int64_t y_stride = 0;
  float position = 0;
  const float* frequencies = nullptr;  // [half]
  float sign = 1;                      // -1: the inverse rotation
};

using RotateFunction = void(const RotaryRow& row);

// The cosines and sines of one position, rounded to the type of what they turn.
struct RotaryAngles {
  ElementType type = ElementType::kF32;
  int64_t half = 0;
  float position = 0;
  const float* frequencies = nullptr;  // [half], as are the results
  float* cosines = nullptr;
  float* sines = nullptr;
};

using AnglesFunction = void(const RotaryAngles& angles);

namespace baseline {
RotateFunction Rotate;
AnglesFunction Angles;
}  // namespace baseline
namespace avx2 {
RotateFunction Rotate;
AnglesFunction Angles;
}  // namespace avx2
namespace avx512 {
RotateFunction Rotate;
AnglesFunction Angles;
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_EMBEDDING_ROTARY_ROW_H_
