// prepare: text to token files with a held-out part. Exit status: 0 done, 2 a
// wrong flag or input, 1 anything else.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "tools/prepare/prepare.h"
#include "tools/program/flags.h"
#include "tools/program/program.h"

int main(int argc, char** argv) {
  using shardgraph::Finish;
  absl::StatusOr<shardgraph::PrepareOptions> options =
      shardgraph::ParsePrepareFlags(shardgraph::ArgumentsOf(argc, argv));
  if (!options.ok()) return Finish("prepare", options.status());

  // Long inputs say where they are, a short one has nothing to say.
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto start = std::chrono::steady_clock::now();
  auto next = start + std::chrono::seconds(1);
  bool printed = false;
  options->progress = [&](int64_t done, int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next) return;
    next = now + std::chrono::seconds(terminal ? 1 : 10);
    const double seconds = std::chrono::duration<double>(now - start).count();
    std::fprintf(stderr, "%sprepare: %lld of %lld MB, %.0f MB/s%s",
                 terminal ? "\r" : "", static_cast<long long>(done / 1000000),
                 static_cast<long long>(total / 1000000), done / seconds / 1e6,
                 terminal ? " " : "\n");
    printed = true;
  };
  const absl::StatusOr<shardgraph::PrepareResult> result =
      shardgraph::Prepare(*options);
  if (printed && terminal) std::fputc('\n', stderr);
  if (!result.ok()) return Finish("prepare", result.status());
  std::printf(
      "%s: %lld files, %lld bytes; train.bin %lld tokens, val.bin %lld tokens, "
      "vocabulary %lld\n",
      options->output.c_str(), static_cast<long long>(result->files),
      static_cast<long long>(result->bytes),
      static_cast<long long>(result->train_tokens),
      static_cast<long long>(result->validation_tokens),
      static_cast<long long>(result->vocab_size));
  if (result->end_of_text.has_value())
    std::printf("documents end with token %d\n", *result->end_of_text);
  return 0;
}
