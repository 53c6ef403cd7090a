#include "tools/presets/presets.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "tools/program/program.h"

namespace shardgraph {
namespace {

// A name stays a name.
std::string NameOrUserPath(absl::string_view name_or_path) {
  return absl::StrContains(name_or_path, "/") ||
                 absl::EndsWith(name_or_path, ".textproto")
             ? UserPath(name_or_path)
             : std::string(name_or_path);
}

}  // namespace

std::string DataPath(absl::string_view path) {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  // In a test its own files: those beside a program may still be on their way
  // there.
  const char* const runfiles = std::getenv("RUNFILES_DIR");
  for (const std::string& folder :
       {runfiles == nullptr ? std::string() : std::string(runfiles),
        error ? std::string() : absl::StrCat(program.string(), ".runfiles")}) {
    const std::string there = absl::StrCat(folder, "/shardgraph/", path);
    if (!folder.empty() && std::filesystem::exists(there, error)) return there;
  }
  return std::string(path);
}

absl::StatusOr<TrainConfig> LoadConfig(
    absl::string_view name_or_path, const std::vector<std::string>& overrides) {
  return LoadTrainConfig(NameOrUserPath(name_or_path),
                         DataPath("proto/configs"), overrides);
}

absl::StatusOr<TargetSpec> LoadTargetPreset(absl::string_view name_or_path) {
  return LoadTarget(
      name_or_path.empty() ? MachineTarget() : NameOrUserPath(name_or_path),
      DataPath("proto/targets"));
}

std::string MachineTarget() {
#if defined(__x86_64__)
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned int kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
      (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0) {
    return "cpu_amx";
  }
#endif
  return "cpu_avx2";
}

}  // namespace shardgraph
