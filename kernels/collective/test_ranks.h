// Runs the ranks of a small world over each transport, for tests.
#ifndef KERNELS_COLLECTIVE_TEST_RANKS_H_
#define KERNELS_COLLECTIVE_TEST_RANKS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/collective/communicator.h"

namespace shardgraph {

enum class TestTransport { kLoopback };

absl::string_view TestTransportName(TestTransport transport);

// What one rank does; the text is anything the test wants back.
using RankBody =
    std::function<absl::StatusOr<std::string>(CommunicatorFactory& factory)>;

struct RankResult {
  absl::Status status;  // of the body
  std::string output;
};

// Runs `body` on `size` ranks, threads or processes as the transport has it,
// and waits for all.
std::vector<RankResult> RunRanks(TestTransport transport, int size,
                                 absl::Duration timeout, const RankBody& body);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_TEST_RANKS_H_
