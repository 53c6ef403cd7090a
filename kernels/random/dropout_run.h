// Dropout of a run of elements, compiled for each CPU target.
//
// Plain structs only (kernels/cpu/target.h says why).
#ifndef KERNELS_RANDOM_DROPOUT_RUN_H_
#define KERNELS_RANDOM_DROPOUT_RUN_H_

#include <cstdint>

#include "kernels/cpu/element_type.h"

namespace shardgraph {

// y[i] = number 4 * block + i of the stream >= threshold ? x[i] * factor : 0.
struct DropoutRun {
  ElementType type = ElementType::kF32;  // F16: baseline target alone
  uint64_t key = 0;                      // those of RandomKey
  uint64_t stream = 0;
  uint64_t block = 0;
  uint32_t threshold = 0;
  float factor = 1;
  int64_t n = 0;
  const void* x = nullptr;
  void* y = nullptr;
};

using DropoutFunction = void(const DropoutRun& run);

namespace baseline {
DropoutFunction RunDropout;
}
namespace avx2 {
DropoutFunction RunDropout;
}
namespace avx512 {
DropoutFunction RunDropout;
}

}  // namespace shardgraph

#endif  // KERNELS_RANDOM_DROPOUT_RUN_H_
