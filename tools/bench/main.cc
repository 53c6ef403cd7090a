// bench: what the parts of Shardgraph cost, and what they reach. Flags are
// Google Benchmark's (--benchmark_filter=..., --benchmark_format=json),
// --out_dir=DIR, which writes DIR/bench.json as well, and
// --device=auto|cpu|cuda: what whole steps run on; auto. Exit status: 0 done, 2
// a wrong flag, 1 no GPU.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "benchmark/benchmark.h"
#include "tools/bench/ranks.h"
#include "tools/bench/steps.h"
#include "tools/program/program.h"
#include "tools/runtime/runtime.h"

namespace shardgraph {
namespace {

// --out_dir=DIR in Google Benchmark's words; takes --device.
std::vector<std::string> Translate(int argc, char** argv, std::string* device) {
  std::vector<std::string> args;
  for (int i = 0; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (absl::ConsumePrefix(&arg, "--device=")) {
      *device = std::string(arg);
      continue;
    }
    if (!absl::ConsumePrefix(&arg, "--out_dir=")) {
      args.emplace_back(arg);
      continue;
    }
    const std::string folder = UserPath(arg);
    std::error_code error;  // Google Benchmark says what it cannot write
    std::filesystem::create_directories(folder, error);
    args.push_back(absl::StrCat("--benchmark_out=", folder, "/bench.json"));
    args.emplace_back("--benchmark_out_format=json");
  }
  return args;
}

int Main(int argc, char** argv) {
  int status = 0;
  if (RunAsRank(argc, argv,
                {{"steps", StepsTask}, {"collectives", CollectivesTask}},
                &status)) {
    return status;
  }
  // The launcher of ranks waits for this signal, whatever threads there are.
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);

  std::string device = "auto";
  std::vector<std::string> args = Translate(argc, argv, &device);
  const absl::StatusOr<DeviceChoice> choice =
      ChooseDevice(device, /*local_ranks=*/1);
  if (!choice.ok()) return Finish("bench", choice.status());
  RegisterSteps(choice->device);
  if (choice->device == "cuda") RegisterCudaKernels();
  std::vector<char*> pointers;
  for (std::string& arg : args) pointers.push_back(arg.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  benchmark::Initialize(&count, pointers.data());
  if (benchmark::ReportUnrecognizedArguments(count, pointers.data())) return 2;
  // Files that the flags name are relative to where the user typed the command.
  if (chdir(UserPath(".").c_str()) != 0) {
    std::perror("bench: cannot enter the working directory");
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace
}  // namespace shardgraph

int main(int argc, char** argv) { return shardgraph::Main(argc, argv); }
