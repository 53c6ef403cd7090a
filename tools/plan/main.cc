// plan: prints the step plan of a training without running it. Exit status: 0
// done, 2 a wrong flag or config, 1 anything else.

#include <cstdio>
#include <string>
#include <vector>

#include "tools/plan/plan.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

int main(int argc, char** argv) {
  using namespace shardgraph;
  const absl::StatusOr<PlanFlags> flags =
      ParsePlanFlags(ArgumentsOf(argc, argv));
  if (!flags.ok()) return Finish("plan", flags.status());
  const absl::StatusOr<std::string> text = RunPlan(*flags);
  if (!text.ok()) return Finish("plan", text.status());
  if (std::fwrite(text->data(), 1, text->size(), stdout) != text->size() ||
      std::fflush(stdout) != 0) {
    std::perror("plan: cannot write the plan");
    return 1;
  }
  return 0;
}
