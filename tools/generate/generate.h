// The program `generate`: continues prompts with a trained model, sharded over
// the ranks as in training.
#ifndef TOOLS_GENERATE_GENERATE_H_
#define TOOLS_GENERATE_GENERATE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/launch/environment.h"
#include "tools/generate/sample.h"

namespace shardgraph {

struct GenerateFlags {
  std::string checkpoint;  // a run directory or one checkpoint of it
  std::string prompt;
  int64_t max_tokens = 256;
  int64_t num_samples = 1;
  int64_t num_ranks = 1;
  std::string device = "auto";
  SampleOptions sampling;
};

// InvalidArgument for wrong flags, Cancelled with the usage text for --help.
absl::StatusOr<GenerateFlags> ParseGenerateFlags(
    const std::vector<std::string>& args);

// Generates as one rank of the job; `emit` gets the text of each sample piece
// by piece, on rank 0 only. Collective.
absl::Status Generate(
    const GenerateFlags& flags, const LaunchEnvironment& environment,
    const std::function<void(int64_t sample, const std::string& text)>& emit);

}  // namespace shardgraph

#endif  // TOOLS_GENERATE_GENERATE_H_
