// The rotation of a head by vectors, for sources compiled with SG_CPU_TARGET
// defined (kernels/cpu/target.h). kernels/embedding/embedding.h has the
// formulas.
#ifndef KERNELS_EMBEDDING_ROTATE_H_
#define KERNELS_EMBEDDING_ROTATE_H_

#include <cstdint>

#include "kernels/cpu/vector.h"

namespace shardgraph::SG_CPU_TARGET {
namespace {

// What elements i and i + D/2 of a head become.
struct RotatedPair {
  Vector first, second;
};
SG_VECTOR_INLINE RotatedPair RotatePair(Vector first, Vector second,
                                        Vector cosine, Vector sine) {
  return {first * cosine - second * sine, second * cosine + first * sine};
}

// A head of 2 * half elements: y = x turned, `sines` being multiplied with
// `sign`. y may be x.
template <typename T>
SG_VECTOR_INLINE void RotateHead(const T* x, T* y, int64_t half,
                                 const float* cosines, const float* sines,
                                 float sign) {
  ForVectors(
      half,
      [=](int64_t i) {
        const RotatedPair pair =
            RotatePair(LoadVector(x + i), LoadVector(x + half + i),
                       LoadVector(cosines + i), LoadVector(sines + i) * sign);
        StoreVector(pair.first, y + i);
        StoreVector(pair.second, y + half + i);
      },
      [=](int64_t i, int64_t count) {
        const RotatedPair pair = RotatePair(
            LoadPart(x + i, count), LoadPart(x + half + i, count),
            LoadPart(cosines + i, count), LoadPart(sines + i, count) * sign);
        StorePart(pair.first, count, y + i);
        StorePart(pair.second, count, y + half + i);
      });
}

}  // namespace
}  // namespace shardgraph::SG_CPU_TARGET

#endif  // KERNELS_EMBEDDING_ROTATE_H_
