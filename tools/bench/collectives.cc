// Collectives of two ranks of this host, by the size of the full buffer, and
// what a copy between two processes reaches: each rank copies its peer's half
// out of memory that both share.
//
//   bazel run //tools:bench -- --benchmark_filter=Collectives
//
// Counter bytes_per_second: what a rank receives, half of the buffer (twice for
// an all-reduce), a second.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "kernels/check.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/status_macros.h"
#include "tools/bench/ranks.h"
#include "tools/bench/steps.h"

namespace shardgraph {
namespace {

using nlohmann::json;

constexpr int kRanks = 2;
constexpr int kWarmUp = 3;

// A file that all ranks map; null when it cannot be mapped.
char* MapFile(const std::string& path, int64_t bytes) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

}  // namespace

absl::StatusOr<json> CollectivesTask(const json& arguments, Runtime& runtime) {
  const std::string what = arguments.at("what");
  const int64_t bytes = arguments.at("bytes");
  const int64_t repeats = arguments.at("repeats");
  CommunicatorFactory& factory = *runtime.communicators();
  std::vector<int> world(runtime.world_size());
  std::iota(world.begin(), world.end(), 0);
  SG_ASSIGN_OR_RETURN(const auto communicator,
                      factory.Create("world", world, /*channel=*/1));
  SG_ASSIGN_OR_RETURN(void* const window, factory.AllocateWindow(bytes));
  std::vector<char> own;
  char* full = static_cast<char*>(window);
  if (full == nullptr) {
    own.resize(bytes);
    full = own.data();
  }
  std::memset(full, 0, bytes);
  const int64_t piece = bytes / runtime.world_size();
  char* const mine = full + runtime.rank() * piece;
  const int64_t count = piece / static_cast<int64_t>(sizeof(float));
  const auto pool = MakeThreadPool(1);
  Lane lane;
  lane.pool = pool.get();

  char* shared = nullptr;
  if (what == "memcpy") {
    const std::string path = arguments.at("file");
    shared = MapFile(path, bytes);
    if (shared == nullptr)
      return absl::UnavailableError(absl::StrCat("cannot map ", path));
    std::memset(shared + runtime.rank() * piece, 1, piece);
  }
  const auto once = [&]() -> absl::Status {
    if (what == "all_gather")
      return communicator->AllGather(mine, full, count, DType::kF32, lane);
    if (what == "reduce_scatter")
      return communicator->ReduceScatter(full, mine, count, DType::kF32, lane);
    if (what == "all_reduce") {
      return communicator->AllReduce(full, count * runtime.world_size(),
                                     DType::kF32, ReduceOp::kSum, lane);
    }
    if (what == "memcpy") {
      const int64_t theirs = (runtime.rank() + 1) % runtime.world_size();
      std::memcpy(full + theirs * piece, shared + theirs * piece, piece);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("no collective ", what));
  };
  std::vector<double> seconds;
  for (int64_t i = 0; i < kWarmUp + repeats; ++i) {
    SG_RETURN_IF_ERROR(communicator->Barrier(lane));
    const auto begin = std::chrono::steady_clock::now();
    SG_RETURN_IF_ERROR(once());
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    if (i >= kWarmUp) seconds.push_back(took.count());
  }
  // Windows live until all ranks are done with them.
  SG_RETURN_IF_ERROR(communicator->Barrier(lane));
  return json{{"seconds", seconds}};
}

namespace {

void Collectives(benchmark::State& state, const std::string& what) {
  const int64_t bytes = state.range(0);
  std::string path = "/dev/shm/shardgraph-bench.XXXXXX";
  const int file = mkstemp(path.data());
  if (file < 0 || ftruncate(file, bytes) != 0) {
    state.SkipWithError("cannot make a file in /dev/shm");
    return;
  }
  const auto remove = absl::MakeCleanup([&] {
    close(file);
    unlink(path.c_str());
  });
  const auto result = RunOnRanks("collectives",
                                 {{"what", what},
                                  {"bytes", bytes},
                                  {"repeats", state.max_iterations},
                                  {"file", path}},
                                 kRanks);
  if (!result.ok()) {
    state.SkipWithError(std::string(result.status().message()).c_str());
    return;
  }
  const std::vector<double> seconds = result->at("seconds");
  size_t i = 0;
  for (auto _ : state) state.SetIterationTime(seconds[i++]);
  const double moved = bytes / kRanks * (what == "all_reduce" ? 2 : 1);
  const double best = *std::min_element(seconds.begin(), seconds.end());
  state.counters["bytes_per_second"] = moved / best;
}

#define SG_COLLECTIVES(what)                  \
  BENCHMARK_CAPTURE(Collectives, what, #what) \
      ->ArgName("bytes")                      \
      ->Arg(16 << 10)                         \
      ->Arg(1 << 20)                          \
      ->Arg(16 << 20)                         \
      ->Arg(128 << 20)                        \
      ->Iterations(20)                        \
      ->UseManualTime()                       \
      ->Unit(benchmark::kMicrosecond)
SG_COLLECTIVES(memcpy);
SG_COLLECTIVES(all_gather);
SG_COLLECTIVES(reduce_scatter);
SG_COLLECTIVES(all_reduce);

}  // namespace
}  // namespace shardgraph
