// The launcher of one host: starts the ranks of a job as processes, serves the
// store where they meet, and stops all when one fails.
//
// Ranks get torchrun's environment variables and the job token (environment.h).
// No rank outlives the launcher, however it ends.
#ifndef FSDP_LAUNCH_LOCAL_LAUNCHER_H_
#define FSDP_LAUNCH_LOCAL_LAUNCHER_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/launch/environment.h"

namespace shardgraph {

struct LocalLaunchOptions {
  int num_ranks = 1;
  // Program and arguments; the program is a path, {"/proc/self/exe", ...} for
  // the calling one.
  std::vector<std::string> command;
  // For rank_<r>.log with what rank r prints, and error files; made when
  // missing. Rank 0's output is passed on to ours too. Empty: all ranks share
  // our output.
  std::string log_directory;
  int restart_count = 0;       // logs of a restart are appended to
  EnvironmentMap environment;  // added to that of this process
  // After one rank has failed: how long the others may take to notice by
  // themselves and say so, before SIGTERM.
  absl::Duration notice = absl::Seconds(2);
  // From SIGTERM, whoever sent it, to SIGKILL.
  absl::Duration grace = absl::Seconds(30);
};

struct LaunchResult {
  // 0: all ranks ended well. 2: the first failure was a wrong flag, config or
  // input (exit status 2 of a rank, or wrong options). 1: anything else.
  int exit_status = 0;
  // Empty when all is well; else the root cause first, then the other ranks.
  std::string message;
  // Somebody asked the launcher to stop.
  bool stopped = false;
};

// Runs all ranks to their end. SIGINT and SIGTERM are passed on to the ranks as
// SIGTERM, so that they can finish their step and save; a second one kills
// them. Call it from the main thread before others exist: the signals SIGCHLD,
// SIGINT and SIGTERM are blocked meanwhile.
LaunchResult RunLocalRanks(const LocalLaunchOptions& options);

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_LOCAL_LAUNCHER_H_
