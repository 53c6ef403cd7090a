// TrainConfig files: presets, defaults, validation.
#ifndef FSDP_CONFIG_TRAIN_CONFIG_H_
#define FSDP_CONFIG_TRAIN_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/target.pb.h"
#include "proto/train.pb.h"

namespace shardgraph {

// Reads the config `name_or_path`: a preset of `preset_directory` (NAME for
// NAME.textproto), or a file, and applies the overrides in order.
// InvalidArgument names what is wrong and the nearest preset.
absl::StatusOr<TrainConfig> LoadTrainConfig(
    absl::string_view name_or_path, absl::string_view preset_directory,
    absl::Span<const std::string> overrides);

// Writes every default out, so that the result says all of the run;
// `max_positions` is the model's (0: no limit). Idempotent.
void ResolveTrainConfig(int64_t max_positions, int world_size,
                        TrainConfig* config);

// Checks a resolved config (the model's own fields are checked by MakeModel).
// InvalidArgument names the field path, the value, what is allowed and the
// remedy.
absl::Status ValidateTrainConfig(const TrainConfig& config,
                                 int64_t max_positions, int world_size);

// The preset "NAME.textproto" of `target_directory`, or a file. InvalidArgument
// with the nearest name, or with the field that makes no sense.
absl::StatusOr<TargetSpec> LoadTarget(absl::string_view name,
                                      absl::string_view target_directory);

// Presets of a directory, sorted.
std::vector<std::string> PresetNames(absl::string_view directory);

}  // namespace shardgraph

#endif  // FSDP_CONFIG_TRAIN_CONFIG_H_
