#include "kernels/collective/test_ranks.h"

#include <memory>
#include <thread>
#include <utility>

#include "kernels/collective/loopback.h"

namespace shardgraph {
namespace {

RankResult RunBody(CommunicatorFactory& factory, const RankBody& body) {
  absl::StatusOr<std::string> result = body(factory);
  if (!result.ok()) return {result.status(), ""};
  return {absl::OkStatus(), *std::move(result)};
}

std::vector<RankResult> RunThreads(int size, absl::Duration timeout,
                                   const RankBody& body) {
  std::vector<RankResult> results(size);
  auto factories = MakeLoopbackWorld(size, {.timeout = timeout});
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      results[rank] = RunBody(*factories[rank], body);
      factories[rank].reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace

absl::string_view TestTransportName(TestTransport transport) {
  return "Loopback";
}

std::vector<RankResult> RunRanks(TestTransport transport, int size,
                                 absl::Duration timeout, const RankBody& body) {
  return RunThreads(size, timeout, body);
}

}  // namespace shardgraph
