#include "kernels/cpu/target.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

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

const char* CpuTargetName(CpuTarget target) {
  switch (target) {
    case CpuTarget::kBaseline:
      return "baseline";
    case CpuTarget::kAvx2:
      return "avx2";
    case CpuTarget::kAvx512:
      return "avx512";
    case CpuTarget::kAvx512Bf16:
      return "avx512_bf16";
    case CpuTarget::kAmx:
      return "amx";
  }
  return "unknown";
}

std::vector<CpuTarget> SupportedCpuTargets() {
  std::vector<CpuTarget> targets = {CpuTarget::kBaseline};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    targets.push_back(CpuTarget::kAvx2);
  if (targets.size() == 2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    targets.push_back(CpuTarget::kAvx512);
  if (targets.size() < 3 || !__builtin_cpu_supports("avx512bf16"))
    return targets;
  targets.push_back(CpuTarget::kAvx512Bf16);
  if (MayUseAmx()) targets.push_back(CpuTarget::kAmx);
  return targets;
}

namespace {

CpuTarget Wanted() {
  const std::vector<CpuTarget> targets = SupportedCpuTargets();
  const char* const name = std::getenv("SHARDGRAPH_CPU_TARGET");
  if (name == nullptr || *name == '\0') {
    // Intel's processors multiply pairs of BF16 at half the rate of FP32.
    const bool slow =
        targets.back() == CpuTarget::kAvx512Bf16 && !__builtin_cpu_is("amd");
    return slow ? CpuTarget::kAvx512 : targets.back();
  }
  for (const CpuTarget target : targets) {
    if (std::strcmp(name, CpuTargetName(target)) == 0) return target;
  }
  std::fprintf(stderr,
               "SHARDGRAPH_CPU_TARGET=%s: this processor has no such kernels; "
               "unset it, or set it to one of:",
               name);
  for (const CpuTarget target : targets)
    std::fprintf(stderr, " %s", CpuTargetName(target));
  std::fputc('\n', stderr);
  std::_Exit(2);
}

CpuTarget& Best() {
  static CpuTarget best = Wanted();
  return best;
}

}  // namespace

CpuTarget BestCpuTarget() { return Best(); }

CpuTargetOverride::CpuTargetOverride(CpuTarget target) : before_(Best()) {
  Best() = target;
}

CpuTargetOverride::~CpuTargetOverride() { Best() = before_; }

}  // namespace shardgraph
