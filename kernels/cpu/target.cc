#include "kernels/cpu/target.h"

namespace shardgraph {

std::vector<CpuTarget> SupportedCpuTargets() {
  std::vector<CpuTarget> targets = {CpuTarget::kBaseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    targets.push_back(CpuTarget::kAvx2);
  if (targets.size() == 2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    targets.push_back(CpuTarget::kAvx512);
  return targets;
}

namespace {

CpuTarget& Best() {
  static CpuTarget best = SupportedCpuTargets().back();
  return best;
}

}  // namespace

CpuTarget BestCpuTarget() { return Best(); }

CpuTargetOverride::CpuTargetOverride(CpuTarget target) : before_(Best()) {
  Best() = target;
}

CpuTargetOverride::~CpuTargetOverride() { Best() = before_; }

}  // namespace shardgraph
