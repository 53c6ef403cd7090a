// Benchmarks over several ranks: each rank a process of this program, as in
// training.
#ifndef TOOLS_BENCH_RANKS_H_
#define TOOLS_BENCH_RANKS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/runtime/runtime.h"

namespace shardgraph {

// What every rank does; collective. Rank 0's result is what counts. Prints
// nothing on stdout, which is the benchmark's.
using RankTask = absl::StatusOr<nlohmann::json> (*)(
    const nlohmann::json& arguments, Runtime& runtime);

// Starts `num_ranks` ranks that do the task of that name, and returns rank 0's
// result. On "cpu" with one compute thread a rank, or on "cuda".
absl::StatusOr<nlohmann::json> RunOnRanks(const std::string& task,
                                          const nlohmann::json& arguments,
                                          int num_ranks,
                                          const std::string& device = "cpu");

// In a rank's process: true when this is one, with its exit status.
bool RunAsRank(int argc, char** argv,
               const std::map<std::string, RankTask>& tasks, int* exit_status);

}  // namespace shardgraph

#endif  // TOOLS_BENCH_RANKS_H_
