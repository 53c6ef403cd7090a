#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "fsdp/launch/environment.h"
#include "fsdp/launch/error_file.h"
#include "fsdp/launch/local_launcher.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"
#include "tools/train/train.h"

namespace shardgraph {
namespace {

// Starts the ranks of this host as processes of this program.
int LaunchRanks(const PreparedRun& run, const std::vector<std::string>& args) {
  LocalLaunchOptions options;
  options.num_ranks = static_cast<int>(run.flags.num_ranks);
  // First: behind a "--" there are no flags.
  options.command = {"/proc/self/exe",
                     absl::StrCat("--run_dir=", run.flags.run_directory)};
  options.command.insert(options.command.end(), args.begin(), args.end());
  // The others find a lost rank within a collective's timeout; let them say so.
  options.notice = absl::Seconds(
      std::min(30.0, std::max(2.0, run.config.run().timeout_seconds())));
  options.log_directory = absl::StrCat(run.flags.run_directory, "/logs");
  const LaunchResult result = RunLocalRanks(options);
  if (!result.message.empty())
    std::fprintf(stderr, "train: %s\n", result.message.c_str());
  return result.exit_status;
}

}  // namespace

int TrainMain(int argc, char** argv, TuneExecutor tune_executor) {
  const std::vector<std::string> args = ArgumentsOf(argc, argv);
  absl::StatusOr<TrainFlags> flags = ParseTrainFlags(args);
  if (!flags.ok()) return Finish("train", flags.status());
  const absl::StatusOr<LaunchEnvironment> environment =
      ParseLaunchEnvironment(CurrentEnvironment());
  if (!environment.ok()) return Finish("train", environment.status());
  const bool launch =
      environment->launcher == Launcher::kNone && flags->num_ranks > 1;
  const int world_size =
      launch ? static_cast<int>(flags->num_ranks) : environment->world_size;

  const int local_ranks =
      launch ? world_size : std::max(1, environment->local_world_size);
  absl::StatusOr<PreparedRun> run =
      PrepareRun(*std::move(flags), world_size, local_ranks);
  // Our launcher has said it already.
  if (run.ok() && !run->note.empty() && environment->rank == 0 &&
      environment->launcher != Launcher::kOwn)
    std::fprintf(stderr, "note: %s\n", run->note.c_str());
  if (run.ok() && launch) return LaunchRanks(*run, args);
  if (run.ok()) run->tune_executor = std::move(tune_executor);
  const absl::Status status =
      run.ok() ? RunRank(*run, *environment) : run.status();
  if (!status.ok() && !absl::IsCancelled(status)) {
    WriteErrorFile(environment->error_file, std::string(status.message()),
                   absl::Now())
        .IgnoreError();
  } else if (status.ok() && environment->rank == 0) {
    std::printf("done: %s\n", run->flags.run_directory.c_str());
  }
  return Finish("train", status);
}

}  // namespace shardgraph
