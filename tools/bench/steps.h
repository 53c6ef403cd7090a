// What ranks do in benchmarks of whole steps and of collectives.
#ifndef TOOLS_BENCH_STEPS_H_
#define TOOLS_BENCH_STEPS_H_

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/runtime/runtime.h"

namespace shardgraph {

// Trains a config on made-up tokens, in turn with oneDNN's products, and says
// where the time goes.
//   arguments {"config": name, "overrides": [...], "steps": n}
//   result    {"seconds": of each step, "figures": {name: number},
//              "table": text for people}
absl::StatusOr<nlohmann::json> StepsTask(const nlohmann::json& arguments,
                                         Runtime& runtime);

// Adds the benchmarks of whole steps on "cpu" or "cuda".
void RegisterSteps(const std::string& device);

// Adds those of CUDA kernels; a program that was built without CUDA has none.
void RegisterCudaKernels();

// Repeats a collective ("all_gather", "reduce_scatter", "all_reduce") over all
// ranks, or copying a peer's part out of memory that both share ("memcpy").
//   arguments {"what": name, "bytes": of the full buffer, "repeats": n,
//              "file": path in shared memory, for "memcpy"}
//   result    {"seconds": of each repeat}
absl::StatusOr<nlohmann::json> CollectivesTask(const nlohmann::json& arguments,
                                               Runtime& runtime);

}  // namespace shardgraph

#endif  // TOOLS_BENCH_STEPS_H_
