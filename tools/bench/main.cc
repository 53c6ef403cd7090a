// bench: what the parts of Shardgraph cost; flags are Google Benchmark's
// (--benchmark_filter=..., --benchmark_format=json). Exit status: 0 done, 2 a
// wrong flag.
#include <unistd.h>

#include <cstdio>

#include "benchmark/benchmark.h"
#include "tools/program/program.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  // Files that the flags name are relative to where the user typed the command.
  if (chdir(shardgraph::UserPath(".").c_str()) != 0) {
    std::perror("bench: cannot enter the working directory");
    return 1;
  }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
