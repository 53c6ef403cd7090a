// CPU targets: instruction sets that hot loops are compiled for, chosen at run
// time.
//
// Sources listed in a cpu_target_library (kernels/cpu/targets.bzl) are compiled
// once per target, each time with SG_CPU_TARGET defined as the name of the
// namespace that holds what they define:
//
//   namespace shardgraph::SG_CPU_TARGET {
//   void GemmTile(...) { ... }
//   }
//
// Such a source includes only headers of plain structs: an inline function that
// another header brings in, compiled there for AVX2, could replace the one that
// the rest of the program uses.
#ifndef KERNELS_CPU_TARGET_H_
#define KERNELS_CPU_TARGET_H_

#include <vector>

namespace shardgraph {

enum class CpuTarget {
  kBaseline,    // x86-64: SSE2
  kAvx2,        // AVX2 and FMA
  kAvx512,      // F, BW, DQ, VL
  kAvx512Bf16,  // those and BF16
  kAmx,         // those and AMX-BF16, for which the system must be asked
};

// "baseline", "avx2" and so on, as their namespaces.
const char* CpuTargetName(CpuTarget target);

// Those that this processor runs, in the order above.
std::vector<CpuTarget> SupportedCpuTargets();
// The fastest of them, or the one that the environment variable
// SHARDGRAPH_CPU_TARGET names, unless a CpuTargetOverride says otherwise.
// Kernels ask when they are prepared, and a plan's target is chosen by it. Ends
// the program with status 2, saying why, where the variable names none of them.
CpuTarget BestCpuTarget();

// Makes BestCpuTarget() give `target`, which this processor must support, while
// it lives: for tests and benchmarks of one target after the other. Not
// thread-safe.
class CpuTargetOverride {
 public:
  explicit CpuTargetOverride(CpuTarget target);
  ~CpuTargetOverride();
  CpuTargetOverride(const CpuTargetOverride&) = delete;
  CpuTargetOverride& operator=(const CpuTargetOverride&) = delete;

 private:
  CpuTarget before_;
};

// The one of three functions that is for `target`; AVX-512 BF16 and AMX, which
// only products of BF16 use, have AVX-512's.
template <typename F>
F* ForTarget(CpuTarget target, F* baseline, F* avx2, F* avx512) {
  switch (target) {
    case CpuTarget::kAmx:
    case CpuTarget::kAvx512Bf16:
    case CpuTarget::kAvx512:
      return avx512;
    case CpuTarget::kAvx2:
      return avx2;
    case CpuTarget::kBaseline:
      break;
  }
  return baseline;
}

// ForTarget(BestCpuTarget(), ...) of the three functions of one name.
#define SG_BEST_CPU_TARGET(function)                                    \
  ::shardgraph::ForTarget(                                              \
      ::shardgraph::BestCpuTarget(), &::shardgraph::baseline::function, \
      &::shardgraph::avx2::function, &::shardgraph::avx512::function)

}  // namespace shardgraph

#endif  // KERNELS_CPU_TARGET_H_
