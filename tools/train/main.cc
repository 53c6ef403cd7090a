// train: trains a model on sharded ranks. Started by a launcher (torchrun,
// srun, mpirun) it is one rank; by hand it starts
// --nproc ranks on this host. Exit status: 0 done, 2 a wrong flag, config or
// input file, 1 anything else.

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
  options.command = {"/proc/self/exe"};
  options.command.insert(options.command.end(), args.begin(), args.end());
  options.command.push_back(
      absl::StrCat("--run_dir=", run.flags.run_directory));
  options.log_directory = absl::StrCat(run.flags.run_directory, "/logs");
  const LaunchResult result = RunLocalRanks(options);
  if (!result.message.empty())
    std::fprintf(stderr, "train: %s\n", result.message.c_str());
  return result.exit_status;
}

int Main(int argc, char** argv) {
  const std::vector<std::string> args = ArgumentsOf(argc, argv);
  absl::StatusOr<TrainFlags> flags = ParseTrainFlags(args);
  if (absl::IsCancelled(flags.status())) {
    std::printf("%s", std::string(flags.status().message()).c_str());
    return 0;
  }
  if (!flags.ok()) return Finish("train", flags.status());
  const absl::StatusOr<LaunchEnvironment> environment =
      ParseLaunchEnvironment(CurrentEnvironment());
  if (!environment.ok()) return Finish("train", environment.status());
  const bool launch =
      environment->launcher == Launcher::kNone && flags->num_ranks > 1;
  const int world_size =
      launch ? static_cast<int>(flags->num_ranks) : environment->world_size;

  absl::StatusOr<PreparedRun> run = PrepareRun(*std::move(flags), world_size);
  if (run.ok() && launch) return LaunchRanks(*run, args);
  const absl::Status status =
      run.ok() ? RunRank(*run, *environment) : run.status();
  if (!status.ok()) {
    WriteErrorFile(environment->error_file, std::string(status.message()),
                   absl::Now())
        .IgnoreError();
  } else if (environment->rank == 0) {
    std::printf("done: %s\n", run->flags.run_directory.c_str());
  }
  return Finish("train", status);
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) { return shardgraph::Main(argc, argv); }
