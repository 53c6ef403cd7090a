// The rotation of one head, for reference kernels.
#ifndef KERNELS_EMBEDDING_ROTARY_REFERENCE_H_
#define KERNELS_EMBEDDING_ROTARY_REFERENCE_H_

#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/reference/access.h"
#include "kernels/tensor.h"

namespace shardgraph {

// Turns the numbers of one head, which are of `dtype`, by its position, or
// back, and rounds them. kernels/embedding/embedding.h has the formulas.
inline void RotateHead(DType dtype, absl::Span<const float> frequencies,
                       float position, bool inverse, double* head) {
  const int64_t half = static_cast<int64_t>(frequencies.size());
  for (int64_t i = 0; i < half; ++i) {
    const double angle = position * frequencies[i];  // rounded to FP32
    const double cosine = RoundTo(dtype, static_cast<float>(std::cos(angle)));
    const double sine = (inverse ? -1 : 1) *
                        RoundTo(dtype, static_cast<float>(std::sin(angle)));
    const double first = head[i], second = head[i + half];
    head[i] = RoundTo(dtype, first * cosine - second * sine);
    head[i + half] = RoundTo(dtype, second * cosine + first * sine);
  }
}

}  // namespace shardgraph

#endif  // KERNELS_EMBEDDING_ROTARY_REFERENCE_H_
