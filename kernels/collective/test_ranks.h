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
#include "gtest/gtest.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

// Threads of this process, or processes of their own.
enum class TestTransport {
  kLoopback,
  kSharedMemory,
  kGloo,
  kAutomatic,
  kNcclDouble  // only where TestWorld::run knows it
};

// One rank of a test.
class TestRank {
 public:
  virtual ~TestRank() = default;
  virtual CommunicatorFactory& factory() = 0;
  // Shared by the ranks: how a test orders what they do.
  virtual Store& store() = 0;
  // Ends this rank here and now: a process by SIGKILL.
  [[noreturn]] virtual void Die() = 0;
  // Asks that this rank be killed by SIGKILL from outside, wherever it then is.
  // A thread dies at once.
  virtual void AskToBeKilled() = 0;

  int rank() { return factory().rank(); }
  int size() { return factory().size(); }
};

// What one rank does; the text is anything the test wants back.
using RankBody = std::function<absl::StatusOr<std::string>(TestRank& rank)>;

struct RankResult {
  absl::Status status;  // of making the factory, or of the body
  std::string output;
  bool died = false;
};

// Runs `body` on `size` ranks and waits for all. Processes are forked: the
// caller has no other threads.
std::vector<RankResult> RunRanks(TestTransport transport, int size,
                                 absl::Duration timeout, const RankBody& body);

// A world to run a test in, and all that a suite runs in: every transport with
// one to four ranks.
struct TestWorld {
  TestTransport transport;
  int size;
  // Instead of RunRanks, for transports that only their own test links.
  std::vector<RankResult> (*run)(int size, absl::Duration timeout,
                                 const RankBody& body) = nullptr;
};
std::vector<RankResult> RunRanks(const TestWorld& world, absl::Duration timeout,
                                 const RankBody& body);
std::vector<TestWorld> AllTestWorlds();
std::string TestWorldName(const testing::TestParamInfo<TestWorld>& info);

// 0, 1, ... size - 1.
std::vector<int> AllRanks(int size);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_TEST_RANKS_H_
