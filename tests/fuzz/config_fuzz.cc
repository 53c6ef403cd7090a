// ParseTextConfig and ApplyOverride: the text of a config, and behind each byte
// 1 an override of it ("run.steps=3"); then ResolveTrainConfig and
// ValidateTrainConfig of what has come of it. Looking for presets and files is
// not driven here.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "fsdp/config/text_config.h"
#include "fsdp/config/train_config.h"
#include "proto/train.pb.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shardgraph;  // NOLINT: a harness
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<absl::string_view> parts = absl::StrSplit(input, '\x01');
  TrainConfig config;
  if (!parts[0].empty() && !ParseTextConfig(parts[0], "input", &config).ok())
    config.Clear();
  for (size_t i = 1; i < parts.size(); ++i)
    ApplyOverride(parts[i], &config).IgnoreError();
  ResolveTrainConfig(/*max_positions=*/1024, /*world_size=*/2, &config);
  ValidateTrainConfig(config, 1024, 2).IgnoreError();
  return 0;
}
