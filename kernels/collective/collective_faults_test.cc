// What happens when a rank dies, is late, aborts or disagrees, over every
// transport: it is named on every rank.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/test_ranks.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

constexpr absl::Duration kLong = absl::Seconds(120);

class CollectiveFaultsTest : public testing::TestWithParam<TestWorld> {
 protected:
  std::vector<RankResult> Run(const RankBody& body) {
    return RunRanks(GetParam().transport, GetParam().size, kLong, body);
  }
};

// Sets "done/rank" when a rank has got its error, so that others can act after
// it.
absl::Status AwaitDone(TestRank& rank, const std::vector<int>& others) {
  std::vector<std::string> keys;
  for (const int other : others) keys.push_back(absl::StrCat("done/", other));
  return rank.store().Wait(keys, kLong);
}

std::vector<int> AllBut(int size, int rank) {
  std::vector<int> others = AllRanks(size);
  others.erase(others.begin() + rank);
  return others;
}

// What `status` of a broken communicator says, after checking that it stays
// broken; sets "done".
absl::StatusOr<std::string> Broken(TestRank& rank, Communicator& comm,
                                   const absl::Status& status) {
  Lane lane;
  SG_RETURN_IF_ERROR(rank.store().Set(absl::StrCat("done/", rank.rank()), ""));
  if (status.ok()) return absl::InternalError("no error");
  if (comm.Barrier(lane) != status) {
    return absl::InternalError("the first error was not kept");
  }
  return status.ToString();
}

// Collectives without end, until one fails; calls `at_step_5`.
absl::Status RunUntilError(Communicator& comm,
                           const std::function<void()>& at_step_5) {
  Lane lane;
  constexpr int64_t kCount = 100000;
  std::vector<float> shard(kCount, 1.0f);
  std::vector<float> full(comm.size() * kCount, 1.0f);
  for (int step = 0;; ++step) {
    if (step == 5) at_step_5();
    SG_RETURN_IF_ERROR(
        comm.AllGather(shard.data(), full.data(), kCount, DType::kF32, lane));
    SG_RETURN_IF_ERROR(comm.ReduceScatter(full.data(), shard.data(), kCount,
                                          DType::kF32, lane));
    SG_RETURN_IF_ERROR(comm.AllReduce(shard.data(), kCount, DType::kF32,
                                      ReduceOp::kMax, lane));
  }
}

TEST_P(CollectiveFaultsTest, RankThatDiesBetweenCallsIsNamed) {
  const int size = GetParam().size;
  if (size == 1) GTEST_SKIP() << "needs peers";
  const int victim = size - 1;
  const auto results = Run([&](TestRank& rank) -> absl::StatusOr<std::string> {
    SG_ASSIGN_OR_RETURN(auto comm,
                        rank.factory().Create("world", AllRanks(size), 0));
    const absl::Status status = RunUntilError(*comm, [&] {
      if (rank.rank() == victim) rank.Die();
    });
    return Broken(rank, *comm, status);
  });
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(results[r].died, r == victim);
    if (r == victim) continue;
    EXPECT_TRUE(results[r].status.ok()) << results[r].status;
    EXPECT_THAT(results[r].output,
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("all_gather #16"),
                      HasSubstr(absl::StrCat("rank ", victim, " "))));
  }
}

TEST_P(CollectiveFaultsTest, RankThatIsKilledAnywhereIsNamed) {
  const int size = GetParam().size;
  if (size == 1) GTEST_SKIP() << "needs peers";
  const int victim = 0;
  const auto results = Run([&](TestRank& rank) -> absl::StatusOr<std::string> {
    SG_ASSIGN_OR_RETURN(auto comm,
                        rank.factory().Create("world", AllRanks(size), 0));
    const absl::Status status = RunUntilError(*comm, [&] {
      if (rank.rank() == victim) rank.AskToBeKilled();
    });
    return Broken(rank, *comm, status);
  });
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(results[r].died, r == victim);
    if (r == victim) continue;
    EXPECT_TRUE(results[r].status.ok()) << results[r].status;
    EXPECT_THAT(results[r].output,
                AllOf(HasSubstr("UNAVAILABLE"), HasSubstr("#"),
                      HasSubstr(absl::StrCat("rank ", victim, " "))));
  }
}

TEST_P(CollectiveFaultsTest, LateRankIsNamedEverywhere) {
  const int size = GetParam().size;
  if (size == 1) GTEST_SKIP() << "needs peers";
  const int late = 1;
  const auto results = Run([&](TestRank& rank) -> absl::StatusOr<std::string> {
    Lane lane;
    SG_ASSIGN_OR_RETURN(auto comm,
                        rank.factory().Create("world", AllRanks(size), 0));
    rank.factory().SetTimeout(kLong);
    SG_RETURN_IF_ERROR(comm->Barrier(lane));
    rank.factory().SetTimeout(absl::Milliseconds(500));
    // The late one comes when all others have given up.
    if (rank.rank() == late) {
      SG_RETURN_IF_ERROR(AwaitDone(rank, AllBut(size, late)));
    }
    float value = 0;
    return Broken(rank, *comm,
                  comm->Broadcast(&value, 1, DType::kF32, late, lane));
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("broadcast #2"),
                      ContainsRegex("rank (0, )?1[ ,]"), HasSubstr("500ms")));
  }
}

TEST_P(CollectiveFaultsTest, AbortWakesEverybody) {
  const int size = GetParam().size;
  const int absent = size - 1;
  const auto results = Run([&](TestRank& rank) -> absl::StatusOr<std::string> {
    Lane lane;
    SG_ASSIGN_OR_RETURN(auto comm,
                        rank.factory().Create("world", AllRanks(size), 0));
    SG_RETURN_IF_ERROR(comm->Barrier(lane));
    // The last one does not come before all others have been woken.
    if (rank.rank() == absent) {
      std::thread aborter([&] {
        comm->Abort(absl::CancelledError("step 7 is late"));
        comm->Abort(absl::CancelledError("a second reason"));
      });
      const absl::Status done = AwaitDone(rank, AllBut(size, absent));
      aborter.join();
      SG_RETURN_IF_ERROR(done);
    }
    return Broken(rank, *comm, comm->Barrier(lane));
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("CANCELLED"), HasSubstr("step 7 is late"),
                      HasSubstr(absl::StrCat("rank ", absent))));
  }
}

// A rank that aborts is itself waiting, in another thread.
TEST_P(CollectiveFaultsTest, AbortWakesItself) {
  const int size = GetParam().size;
  if (size == 1) GTEST_SKIP() << "needs peers";
  const int absent = 1;
  const auto results = Run([&](TestRank& rank) -> absl::StatusOr<std::string> {
    Lane lane;
    SG_ASSIGN_OR_RETURN(auto comm,
                        rank.factory().Create("world", AllRanks(size), 0));
    SG_RETURN_IF_ERROR(comm->Barrier(lane));
    if (rank.rank() == absent) {
      SG_RETURN_IF_ERROR(AwaitDone(rank, AllBut(size, absent)));
    }
    std::thread aborter;
    if (rank.rank() == 0) {
      aborter = std::thread([&] { comm->Abort(absl::CancelledError("why")); });
    }
    const absl::Status status = comm->Barrier(lane);
    if (aborter.joinable()) aborter.join();
    return Broken(rank, *comm, status);
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_THAT(result.output, AllOf(HasSubstr("CANCELLED: "), HasSubstr("why"),
                                     HasSubstr("rank 0")));
  }
}

// Ranks that read each other's calls can tell who called what.
TEST_P(CollectiveFaultsTest, DisagreementIsNamed) {
  const int size = GetParam().size;
  if (GetParam().transport == TestTransport::kGloo) {
    GTEST_SKIP() << "shows as a late rank";
  }
  if (size == 1) GTEST_SKIP() << "needs peers";
  const auto results = Run([&](TestRank& rank) -> absl::StatusOr<std::string> {
    Lane lane;
    SG_ASSIGN_OR_RETURN(auto comm,
                        rank.factory().Create("world", AllRanks(size), 0));
    std::vector<float> data(100 * size);
    const bool odd = rank.rank() == 1;
    return Broken(rank, *comm,
                  comm->AllReduce(data.data(), odd ? 8 : 7, DType::kF32,
                                  ReduceOp::kSum, lane));
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_THAT(result.output,
                AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr("rank 1 "),
                      HasSubstr("F32 x 8"), HasSubstr("F32 x 7")));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CollectiveFaultsTest,
                         testing::ValuesIn(AllTestWorlds()), TestWorldName);

}  // namespace
}  // namespace shardgraph
