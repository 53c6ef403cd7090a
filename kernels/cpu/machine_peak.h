// Loops that show what this processor can do, compiled for each CPU target:
// yardsticks of benchmarks.
#ifndef KERNELS_CPU_MACHINE_PEAK_H_
#define KERNELS_CPU_MACHINE_PEAK_H_

#include <cstdint>

namespace shardgraph {

// `steps` rounds of FlopsPerStep() FP32 operations (multiply-adds) in
// registers; a number that depends on all of them.
using MultiplyAddFunction = float(int64_t steps);
// a = b + 3 c over n elements: 12 n bytes, as STREAM counts.
using TriadFunction = void(int64_t n, float* a, const float* b, const float* c);

namespace baseline {
MultiplyAddFunction MultiplyAdd;
TriadFunction Triad;
int64_t FlopsPerStep();
}  // namespace baseline
namespace avx2 {
MultiplyAddFunction MultiplyAdd;
TriadFunction Triad;
int64_t FlopsPerStep();
}  // namespace avx2
namespace avx512 {
MultiplyAddFunction MultiplyAdd;
TriadFunction Triad;
int64_t FlopsPerStep();
}  // namespace avx512

}  // namespace shardgraph

#endif  // KERNELS_CPU_MACHINE_PEAK_H_
