// What `plan` does with its command line.
#ifndef TOOLS_PLAN_PLAN_H_
#define TOOLS_PLAN_PLAN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace shardgraph {

struct PlanFlags {
  enum class Format { kText, kJson, kSvg };

  std::string config;  // preset or path
  int world_size = 1;
  std::string target;  // preset or path; empty: run.target, else this machine's
  Format format = Format::kText;
  std::vector<std::string> overrides;
};

// InvalidArgument for wrong flags, Cancelled with the usage text for --help.
absl::StatusOr<PlanFlags> ParsePlanFlags(const std::vector<std::string>& args);

// Makes the plan and returns it in the format asked for.
absl::StatusOr<std::string> RunPlan(const PlanFlags& flags);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_PLAN_H_
