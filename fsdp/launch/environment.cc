#include "fsdp/launch/environment.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int kMaxRanks = 1 << 20;

// Reads variables; knows who should have set them.
class Variables {
 public:
  Variables(const EnvironmentMap& map, Launcher launcher)
      : map_(map), launcher_(launcher) {}

  bool Has(const std::string& name) const {
    const auto it = map_.find(name);
    return it != map_.end() && !it->second.empty();
  }
  std::string Get(const std::string& name,
                  const std::string& otherwise = "") const {
    return Has(name) ? map_.at(name) : otherwise;
  }
  absl::StatusOr<int> Number(const std::string& name, int minimum,
                             int maximum) const {
    if (!Has(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the environment variable ", name, " is missing, although ",
          LauncherName(launcher_), " seems to have started this rank; set ",
          name, ", or unset the others to run a single rank"));
    }
    int value = 0;
    if (!absl::SimpleAtoi(map_.at(name), &value) || value < minimum ||
        value > maximum) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the environment variable ", name, " is '", map_.at(name),
          "'; allowed are whole numbers from ", minimum, " to ", maximum));
    }
    return value;
  }
  // -1 when not there.
  absl::StatusOr<int> OptionalNumber(const std::string& name, int minimum,
                                     int maximum) const {
    if (!Has(name)) return -1;
    return Number(name, minimum, maximum);
  }

 private:
  const EnvironmentMap& map_;
  const Launcher launcher_;
};

// Rank and sizes from the variables named so.
absl::Status ReadRanks(const Variables& variables, const std::string& rank,
                       const std::string& size, const std::string& local_rank,
                       const std::string& local_size,
                       LaunchEnvironment* environment) {
  LaunchEnvironment& e = *environment;
  SG_ASSIGN_OR_RETURN(e.world_size, variables.Number(size, 1, kMaxRanks));
  SG_ASSIGN_OR_RETURN(e.rank, variables.Number(rank, 0, e.world_size - 1));
  SG_ASSIGN_OR_RETURN(e.local_world_size,
                      variables.OptionalNumber(local_size, 1, e.world_size));
  const int locals = e.local_world_size > 0 ? e.local_world_size : e.world_size;
  SG_ASSIGN_OR_RETURN(e.local_rank,
                      variables.OptionalNumber(local_rank, 0, locals - 1));
  if (e.world_size == 1) {
    e.local_rank = std::max(e.local_rank, 0);
    e.local_world_size = 1;
  }
  return absl::OkStatus();
}

absl::Status ReadMaster(const Variables& variables,
                        LaunchEnvironment* environment) {
  environment->store_host = variables.Get("MASTER_ADDR");
  if (environment->store_host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment variable MASTER_ADDR is missing: ",
        environment->world_size,
        " ranks need the name or address of the host of rank 0 to meet; set "
        "MASTER_ADDR and MASTER_PORT on all of them"));
  }
  SG_ASSIGN_OR_RETURN(environment->store_port,
                      variables.Number("MASTER_PORT", 1, 65535));
  return absl::OkStatus();
}

// Rank 0 serves the store at the address that has been found. The ranks share
// no secret but the user's; a job's name keeps out other jobs only.
void ServeFromRankZero(const Variables& variables, absl::string_view job,
                       LaunchEnvironment* environment) {
  LaunchEnvironment& e = *environment;
  e.serves_store = e.rank == 0;
  e.store_token = variables.Get(kSecretVariable, std::string(job));
  const bool loopback = absl::StartsWith(e.store_host, "127.") ||
                        e.store_host == "localhost" || e.store_host == "::1";
  if (e.serves_store && !loopback && !variables.Has(kSecretVariable)) {
    e.note = absl::StrCat(
        "who can reach port ", e.store_port, " of ", e.store_host,
        " and guess the name of this job can join it; where that matters, set ",
        kSecretVariable, " to a secret of your own for all ranks");
  }
}

// A port that all ranks of a job compute alike, below the ephemeral ones.
int PortOfJob(absl::string_view job) {
  uint32_t hash = 2166136261u;
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  return 20000 + static_cast<int>(hash % 12000);
}

absl::StatusOr<LaunchEnvironment> ParseTorchrun(const EnvironmentMap& map,
                                                Launcher launcher) {
  const Variables variables(map, launcher);
  LaunchEnvironment e;
  e.launcher = launcher;
  SG_RETURN_IF_ERROR(ReadRanks(variables, "RANK", "WORLD_SIZE", "LOCAL_RANK",
                               "LOCAL_WORLD_SIZE", &e));
  e.error_file = variables.Get("TORCHELASTIC_ERROR_FILE");
  const std::string run = variables.Get("TORCHELASTIC_RUN_ID", "none");
  const std::string restart = variables.Get("TORCHELASTIC_RESTART_COUNT", "0");
  e.store_prefix = absl::StrCat("shardgraph/", run, "/", restart);
  if (launcher == Launcher::kOwn) {
    SG_RETURN_IF_ERROR(ReadMaster(variables, &e));
    e.store_token = variables.Get(kTokenVariable);
    return e;
  }
  if (e.world_size == 1) return e;
  SG_RETURN_IF_ERROR(ReadMaster(variables, &e));
  // The agent then holds the port: this rank can only be its client.
  if (variables.Get("TORCHELASTIC_USE_AGENT_STORE") == "True") return e;
  ServeFromRankZero(variables, absl::StrCat("torchrun/", run, "/", restart),
                    &e);
  return e;
}

absl::StatusOr<LaunchEnvironment> ParseSlurm(const EnvironmentMap& map) {
  const Variables variables(map, Launcher::kSlurm);
  LaunchEnvironment e;
  e.launcher = Launcher::kSlurm;
  const bool has_step_size = variables.Has("SLURM_STEP_NUM_TASKS");
  SG_RETURN_IF_ERROR(
      ReadRanks(variables, "SLURM_PROCID",
                has_step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
                "SLURM_LOCALID", "", &e));
  const std::string job = absl::StrCat(
      "slurm/", variables.Get("SLURM_JOB_ID", "none"), "/",
      variables.Get("SLURM_STEP_ID", variables.Get("SLURM_STEPID")), "/",
      variables.Get("SLURM_RESTART_COUNT", "0"));
  e.store_prefix = absl::StrCat("shardgraph/", job);
  if (e.world_size == 1) return e;
  if (variables.Has("MASTER_ADDR")) {
    e.store_host = variables.Get("MASTER_ADDR");
  } else {
    // Rank 0 of a step runs on the first of its nodes.
    const std::string name = variables.Has("SLURM_STEP_NODELIST")
                                 ? "SLURM_STEP_NODELIST"
                                 : "SLURM_JOB_NODELIST";
    absl::StatusOr<std::vector<std::string>> nodes =
        ExpandNodeList(variables.Get(name));
    if (!nodes.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the environment variable ", name, ": ", nodes.status().message(),
          "; set MASTER_ADDR to the host of rank 0"));
    }
    e.store_host = nodes->front();
  }
  e.store_port = PortOfJob(job);
  if (variables.Has("MASTER_PORT")) {
    SG_ASSIGN_OR_RETURN(e.store_port,
                        variables.Number("MASTER_PORT", 1, 65535));
  }
  ServeFromRankZero(variables, job, &e);
  return e;
}

absl::StatusOr<LaunchEnvironment> ParseOpenMpi(const EnvironmentMap& map) {
  const Variables variables(map, Launcher::kOpenMpi);
  LaunchEnvironment e;
  e.launcher = Launcher::kOpenMpi;
  SG_RETURN_IF_ERROR(ReadRanks(
      variables, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", &e));
  const std::string job = absl::StrCat(
      "mpi/", variables.Get("PMIX_NAMESPACE",
                            variables.Get("OMPI_MCA_ess_base_jobid", "none")));
  e.store_prefix = absl::StrCat("shardgraph/", job);
  if (e.world_size == 1) return e;
  // mpirun says how many ranks a host has, but not which host has rank 0.
  if (!variables.Has("MASTER_ADDR") && e.local_world_size == e.world_size) {
    e.store_host = "127.0.0.1";
    e.store_port = PortOfJob(job);
  } else {
    SG_RETURN_IF_ERROR(ReadMaster(variables, &e));
  }
  ServeFromRankZero(variables, job, &e);
  return e;
}

// Why Slurm's variables, although there, do not mean that srun has started the
// ranks of this job; empty when it has.
std::string WhySlurmIsStray(const Variables& variables) {
  if (!variables.Has("SLURM_STEP_ID") && !variables.Has("SLURM_STEPID")) {
    return "SLURM_PROCID is set, but not by srun (no SLURM_STEP_ID): running "
           "one rank; start several with srun";
  }
  if (variables.Has("SLURM_PTY_PORT")) {
    return "SLURM_PROCID is that of an interactive shell (SLURM_PTY_PORT): "
           "running one rank; start several with srun";
  }
  return "";
}

}  // namespace

absl::string_view LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kOwn:
      return "shardgraph";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kSlurm:
      return "Slurm";
    case Launcher::kOpenMpi:
      return "Open MPI";
  }
  return "unknown";
}

EnvironmentMap CurrentEnvironment() {
  EnvironmentMap map;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text(*entry);
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      map[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  return map;
}

absl::StatusOr<LaunchEnvironment> ParseLaunchEnvironment(
    const EnvironmentMap& map) {
  const Variables variables(map, Launcher::kNone);
  if (variables.Has(kTokenVariable)) {
    return ParseTorchrun(map, Launcher::kOwn);
  }
  if (variables.Has("RANK") || variables.Has("WORLD_SIZE")) {
    return ParseTorchrun(map, Launcher::kTorchrun);
  }
  LaunchEnvironment single;
  if (variables.Has("SLURM_PROCID")) {
    single.note = WhySlurmIsStray(variables);
    if (single.note.empty()) return ParseSlurm(map);
  }
  if (variables.Has("OMPI_COMM_WORLD_RANK") ||
      variables.Has("OMPI_COMM_WORLD_SIZE")) {
    return ParseOpenMpi(map);
  }
  return single;
}

}  // namespace shardgraph
