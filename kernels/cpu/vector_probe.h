// The functions of kernels/cpu/vector.h over arrays of n elements, compiled for
// each CPU target: for its test.
#ifndef KERNELS_CPU_VECTOR_PROBE_H_
#define KERNELS_CPU_VECTOR_PROBE_H_

#include <cstdint>

namespace shardgraph {

struct VectorProbe {
  void (*exp)(const float* x, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*normal)(const float* x, int64_t n, float* y);
  void (*square_root)(const float* x, int64_t n, float* y);
  void (*round_bf16)(const float* x, int64_t n, uint16_t* y);
  void (*widen_bf16)(const uint16_t* x, int64_t n, float* y);
  float (*sum)(const float* x, int64_t n);
};

namespace baseline {
VectorProbe Probe();
}
namespace avx2 {
VectorProbe Probe();
}
namespace avx512 {
VectorProbe Probe();
}

}  // namespace shardgraph

#endif  // KERNELS_CPU_VECTOR_PROBE_H_
