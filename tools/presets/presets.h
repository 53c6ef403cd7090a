// The configs and targets that come with the programs, and the target of this
// machine.
#ifndef TOOLS_PRESETS_PRESETS_H_
#define TOOLS_PRESETS_PRESETS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/target.pb.h"
#include "proto/train.pb.h"

namespace shardgraph {

// The folder of a path in the source tree ("proto/configs") as data of the
// running program: in RUNFILES_DIR, which tests have, beside it
// (PROGRAM.runfiles), or in the working directory.
std::string DataPath(absl::string_view path);

// A preset by its name or a file by its path (relative to where the user typed
// the command), with overrides applied: LoadTrainConfig (fsdp/config).
absl::StatusOr<TrainConfig> LoadConfig(
    absl::string_view name_or_path, const std::vector<std::string>& overrides);

// The same for targets; an empty name is this machine's.
absl::StatusOr<TargetSpec> LoadTargetPreset(absl::string_view name_or_path);

// That of the CPU target (kernels/cpu/target.h): "cpu_amx", "cpu_avx512_bf16",
// "cpu_avx512", or "cpu_avx2" for all others.
std::string MachineTarget();

}  // namespace shardgraph

#endif  // TOOLS_PRESETS_PRESETS_H_
