// LaunchEnvironment: which rank of which job this process is, and where the
// ranks meet, as the launcher has put it into environment variables.
//
// Understood, in this order: our own launcher (local_launcher.h), torchrun, and
// whatever else sets its variables; Slurm's srun; Open MPI's mpirun. Nothing
// set: one rank. Which ranks share a host is never concluded from local ranks;
// ranks find out when they meet.
#ifndef FSDP_LAUNCH_ENVIRONMENT_H_
#define FSDP_LAUNCH_ENVIRONMENT_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

enum class Launcher { kNone, kOwn, kTorchrun, kSlurm, kOpenMpi };

absl::string_view LauncherName(Launcher launcher);

struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  // Which of this host's ranks it is, for binding to cores or a GPU; -1 when
  // the launcher does not say.
  int local_rank = 0;
  int local_world_size = 1;  // ranks of this host; -1 when not said

  // The rendezvous store; no host when there is one rank and none to meet.
  std::string store_host;
  int store_port = 0;
  bool serves_store = false;  // this rank serves it, on store_port
  // Keeps ranks of other jobs out and, when it cannot be guessed, other users;
  // empty for the store of torchrun's agent.
  std::string store_token;
  // For all keys: tells jobs and their restarts apart.
  std::string store_prefix;

  // Where to write why this rank failed, for the launcher (error_file.h); may
  // be empty.
  std::string error_file;
  // What a person may want to know, such as variables that were ignored; may be
  // empty.
  std::string note;
};

using EnvironmentMap = std::map<std::string, std::string>;

// The variables of this process.
EnvironmentMap CurrentEnvironment();

// InvalidArgument names the variable, its value, what is allowed and the
// remedy.
absl::StatusOr<LaunchEnvironment> ParseLaunchEnvironment(
    const EnvironmentMap& variables);

// "node[01-03,7],login" -> node01 node02 node03 node7 login. Several brackets
// in a name multiply; text may follow a bracket.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

// Set by our own launcher besides torchrun's variables: the token.
inline constexpr char kTokenVariable[] = "SHARDGRAPH_STORE_TOKEN";
// For other launchers, which have no secret to share: set by the user, alike
// for all ranks. Without it the token is made of the job's name.
inline constexpr char kSecretVariable[] = "SHARDGRAPH_JOB_SECRET";

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_ENVIRONMENT_H_
