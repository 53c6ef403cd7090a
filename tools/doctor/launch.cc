// The variables that launchers of multi-rank runs set.

#include <cstdlib>
#include <string>
#include <vector>

#include "tools/doctor/facts.h"

namespace shardgraph::doctor {
namespace {

struct Launcher {
  const char* name;
  std::vector<const char*> variables;  // the first names the rank
};

}  // namespace

std::string LaunchFacts::Get(const std::string& name) const {
  for (const auto& [key, value] : variables) {
    if (key == name) return value;
  }
  return "";
}

LaunchFacts GatherLaunch() {
  static const std::vector<Launcher> launchers = {
      {"torchrun",
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}},
      {"Slurm",
       {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID",
        "SLURM_JOB_ID", "SLURM_JOB_NODELIST"}},
      {"Open MPI",
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK"}}};
  LaunchFacts launch;
  for (const Launcher& launcher : launchers) {
    if (std::getenv(launcher.variables[0]) == nullptr) continue;
    launch.launcher = launcher.name;
    for (const char* name : launcher.variables) {
      if (const char* value = std::getenv(name)) {
        launch.variables.emplace_back(name, value);
      }
    }
    break;
  }
  return launch;
}

}  // namespace shardgraph::doctor
