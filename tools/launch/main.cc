// launch: starts a program once per rank on this host, with torchrun's
// variables, watches the ranks, and starts all of them again when one has
// failed. Exit status: 0 all ranks ended well, 2 a wrong flag, config or input
// file (of ours or of the ranks), 1 anything else.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "fsdp/launch/restarts.h"
#include "kernels/status_macros.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

namespace shardgraph {
namespace {

constexpr char kUsage[] =
    "launch: runs a program as the ranks of one host.\n"
    "  launch --nproc=N [--max_restarts=K] [flags] -- PROGRAM [argument ...]";

// Where the program is: a path from where the user is, or a name in PATH.
absl::StatusOr<std::string> FindProgram(const std::string& name) {
  if (absl::StrContains(name, "/")) return UserPath(name);
  const char* path = std::getenv("PATH");
  const std::vector<std::string> folders =
      absl::StrSplit(path == nullptr ? "" : path, ':', absl::SkipEmpty());
  for (const std::string& folder : folders) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no program \"", name,
                                                 "\" in PATH; give its path"));
}

absl::Status Require(bool ok, absl::string_view flag, double value,
                     absl::string_view allowed) {
  if (ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, " is ", value, "; it must be ", allowed));
}

absl::StatusOr<LaunchResult> Launch(const std::vector<std::string>& args) {
  int64_t num_ranks = 1, max_restarts = 3;
  double backoff = 1, notice = 30, grace = 30;
  std::string log_directory = "logs";
  LocalLaunchOptions options;
  SG_RETURN_IF_ERROR(ParseFlags(
      kUsage, args,
      {{"nproc", &num_ranks, "ranks; 1"},
       {"max_restarts", &max_restarts,
        "how often all ranks are started again after one has failed; 3"},
       {"backoff_seconds", &backoff,
        "before the first restart, doubled with each, at most 60; 1"},
       {"notice_seconds", &notice,
        "that the other ranks have to say so by themselves when one has "
        "failed; 30"},
       {"grace_seconds", &grace, "that ranks have to end after SIGTERM; 30"},
       {"log_dir", &log_directory,
        "for rank_N.log with what each rank prints; logs"}},
      &options.command));
  SG_RETURN_IF_ERROR(Require(num_ranks >= 1 && num_ranks <= 1024, "nproc",
                             static_cast<double>(num_ranks),
                             "1 to 1024 ranks"));
  SG_RETURN_IF_ERROR(Require(max_restarts >= 0 && max_restarts <= 1000000,
                             "max_restarts", static_cast<double>(max_restarts),
                             "0 (none) to 1000000"));
  SG_RETURN_IF_ERROR(Require(backoff >= 0 && backoff <= 60, "backoff_seconds",
                             backoff, "0 to 60"));
  SG_RETURN_IF_ERROR(Require(notice >= 0 && notice <= 1e6, "notice_seconds",
                             notice, "0 to 1000000"));
  SG_RETURN_IF_ERROR(Require(grace >= 0 && grace <= 1e6, "grace_seconds", grace,
                             "0 to 1000000"));
  if (options.command.empty()) {
    return absl::InvalidArgumentError(
        "there is no program to run; for example launch --nproc=2 -- "
        "bazel-bin/tools/train/train --config=quickstart --run_dir=DIR");
  }
  SG_ASSIGN_OR_RETURN(options.command[0], FindProgram(options.command[0]));
  options.num_ranks = static_cast<int>(num_ranks);
  options.notice = absl::Seconds(notice);
  options.grace = absl::Seconds(grace);
  options.log_directory = UserPath(log_directory);
  RestartOptions restarts;
  restarts.max_restarts = static_cast<int>(max_restarts);
  restarts.backoff = absl::Seconds(backoff);
  return RunWithRestarts(std::move(options), restarts);
}

int Main(int argc, char** argv) {
  const absl::StatusOr<LaunchResult> result = Launch(ArgumentsOf(argc, argv));
  if (!result.ok()) return Finish("launch", result.status());
  if (!result->message.empty())
    std::fprintf(stderr, "launch: %s\n", result->message.c_str());
  return result->exit_status;
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) { return shardgraph::Main(argc, argv); }
