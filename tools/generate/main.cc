// generate: continues a prompt with a trained model. Exit status: 0 done, 2 a
// wrong flag or checkpoint, 1 anything else.

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/launch/environment.h"
#include "fsdp/launch/local_launcher.h"
#include "tools/generate/generate.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

int main(int argc, char** argv) {
  using namespace shardgraph;
  const std::vector<std::string> args = ArgumentsOf(argc, argv);
  const absl::StatusOr<GenerateFlags> flags = ParseGenerateFlags(args);
  if (!flags.ok()) return Finish("generate", flags.status());
  const absl::StatusOr<LaunchEnvironment> environment =
      ParseLaunchEnvironment(CurrentEnvironment());
  if (!environment.ok()) return Finish("generate", environment.status());
  if (environment->launcher == Launcher::kNone && flags->num_ranks > 1) {
    LocalLaunchOptions options;
    options.num_ranks = static_cast<int>(flags->num_ranks);
    options.command = {"/proc/self/exe"};
    options.command.insert(options.command.end(), args.begin(), args.end());
    const LaunchResult result = RunLocalRanks(options);
    if (!result.message.empty())
      std::fprintf(stderr, "generate: %s\n", result.message.c_str());
    return result.exit_status;
  }
  int64_t shown = -1;
  const absl::Status status = Generate(
      *flags, *environment, [&](int64_t sample, const std::string& text) {
        if (sample != shown) {
          if (shown >= 0) std::printf("\n");
          if (flags->num_samples > 1)
            std::printf("--- sample %lld\n",
                        static_cast<long long>(sample + 1));
          std::fputs(flags->prompt.c_str(), stdout);
          shown = sample;
        }
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      });
  if (status.ok() && environment->rank == 0) std::printf("\n");
  return Finish("generate", status);
}
