#include "tools/presets/presets.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/config/train_config.h"
#include "kernels/cpu/target.h"
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
  switch (BestCpuTarget()) {
    case CpuTarget::kAmx:
      return "cpu_amx";
    case CpuTarget::kAvx512Bf16:
      return "cpu_avx512_bf16";
    case CpuTarget::kAvx512:
      return "cpu_avx512";
    default:
      return "cpu_avx2";
  }
}

}  // namespace shardgraph
