#include "tools/bench/ranks.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/files/durable_file.h"
#include "fsdp/files/json.h"
#include "fsdp/launch/environment.h"
#include "fsdp/launch/local_launcher.h"
#include "kernels/status_macros.h"
#include "tools/program/program.h"

namespace shardgraph {
namespace {

using nlohmann::json;

constexpr char kRank[] = "--bench_rank";  // DEVICE TASK ARGUMENTS RESULT

absl::Status RunTask(const std::vector<std::string>& words,
                     const std::map<std::string, RankTask>& tasks) {
  SG_ASSIGN_OR_RETURN(const LaunchEnvironment environment,
                      ParseLaunchEnvironment(CurrentEnvironment()));
  const auto task = tasks.find(words[1]);
  if (task == tasks.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no task \"", words[1], "\" for ranks"));
  }
  RuntimeOptions options;
  options.device = words[0];
  options.threads = 1;
  SG_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                      Runtime::Create(environment, options));
  const absl::StatusOr<json> result =
      task->second(ParseJson(words[2]), *runtime);
  if (!result.ok()) {
    runtime->Abort(result.status());
    return result.status();
  }
  if (environment.rank != 0) return absl::OkStatus();
  return WriteDurableFile(words[3], JsonText(*result));
}

}  // namespace

absl::StatusOr<json> RunOnRanks(const std::string& task, const json& arguments,
                                int num_ranks, const std::string& device) {
  std::string folder =
      (std::filesystem::temp_directory_path() / "bench.XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr)
    return absl::UnavailableError(absl::StrCat("cannot make ", folder));
  const std::string file = folder + "/result.json";
  LocalLaunchOptions options;
  options.num_ranks = num_ranks;
  options.command = {"/proc/self/exe",    kRank, device, task,
                     JsonText(arguments), file};
  options.environment = {{"OMP_NUM_THREADS", "1"}};  // oneDNN's
  const LaunchResult launch = RunLocalRanks(options);
  const absl::StatusOr<std::string> text =
      launch.exit_status == 0 ? ReadWholeFile(file)
                              : absl::UnavailableError(launch.message);
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  if (!text.ok()) return text.status();
  return ParseJson(*text);
}

bool RunAsRank(int argc, char** argv,
               const std::map<std::string, RankTask>& tasks, int* exit_status) {
  if (argc != 6 || std::string(argv[1]) != kRank) return false;
  *exit_status =
      Finish("bench", RunTask({argv[2], argv[3], argv[4], argv[5]}, tasks));
  return true;
}

}  // namespace shardgraph
