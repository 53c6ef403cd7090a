#include "kernels/cpu/target.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace shardgraph {
namespace {

// Whether AMX-BF16 is there and the system lets this process use it, which it
// does on request only: the registers make a thread's state 8 KiB larger
// (Linux, Documentation/arch/x86/xstate.rst).
bool MayUseAmx() {
  unsigned a, b, c, d;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

std::vector<CpuTarget> SupportedCpuTargets() {
  std::vector<CpuTarget> targets = {CpuTarget::kBaseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    targets.push_back(CpuTarget::kAvx2);
  if (targets.size() == 2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    targets.push_back(CpuTarget::kAvx512);
  if (targets.size() < 3) return targets;
  // Intel's processors multiply pairs of BF16 at half the rate of FP32.
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
    targets.push_back(CpuTarget::kAvx512Bf16);
  if (MayUseAmx()) targets.push_back(CpuTarget::kAmx);
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
