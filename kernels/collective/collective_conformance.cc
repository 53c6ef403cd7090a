#include "kernels/collective/collective_conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/test_ranks.h"
#include "kernels/status_macros.h"
#include "kernels/testing/allocations.h"

namespace shardgraph {
namespace {

#ifdef SG_TSAN  // ten times slower
constexpr int64_t kMillion = 100003;
#else
constexpr int64_t kMillion = 1000003;
#endif

// Cuts ranges into pieces of `grain` and runs them last to first.
class BackwardPool final : public ThreadPool {
 public:
  int num_threads() const override { return 2; }
  void ParallelFor(int64_t n, int64_t grain,
                   absl::FunctionRef<void(int64_t, int64_t)> body) override {
    for (int64_t begin = (n - 1) / grain * grain; begin >= 0; begin -= grain) {
      body(begin, std::min(n, begin + grain));
    }
  }
};

// Element i of rank r's input: small integers, or reals of very different
// magnitudes, so that another order of additions gives other bits.
template <typename T>
T Value(bool integers, int rank, int64_t i) {
  if (integers) return static_cast<T>((rank + 2) * (i % 1013) + rank);
  uint64_t x = (static_cast<uint64_t>(rank) << 40) + i + 1;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  const double mantissa = static_cast<double>(x >> 11) * 0x1p-52 - 1;
  return static_cast<T>(mantissa * static_cast<double>(1 << (x % 24)));
}

template <typename T>
T Reduced(bool integers, int size, int64_t i, ReduceOp op) {
  T sum = Value<T>(integers, 0, i);
  for (int r = 1; r < size; ++r) {
    const T next = Value<T>(integers, r, i);
    sum =
        op == ReduceOp::kSum ? static_cast<T>(sum + next) : std::max(sum, next);
  }
  return sum;
}

// Where the buffers of a test lie.
enum class Memory { kHeap, kWindow, kMixed };

// Hands out buffers from the heap or, where the transport has one, a window.
class Buffers {
 public:
  Buffers(char* window, Memory memory, int rank) : window_(window) {
    in_window_ =
        window != nullptr && (memory == Memory::kWindow ||
                              (memory == Memory::kMixed && rank % 2 == 0));
  }

  template <typename T>
  T* Get(int64_t count) {
    const int64_t bytes = count * sizeof(T);
    if (in_window_) {
      char* buffer = window_ + used_;
      used_ += (bytes + 63) / 64 * 64;
      return reinterpret_cast<T*>(buffer);
    }
    heap_.push_back(std::make_unique<char[]>(bytes + 1));
    return reinterpret_cast<T*>(heap_.back().get());
  }

 private:
  char* window_;
  bool in_window_ = false;
  int64_t used_ = 0;
  std::vector<std::unique_ptr<char[]>> heap_;
};

constexpr int64_t kWindowBytes = 40 * (int64_t{1} << 20);

// actual[i] == expected(i) to the bit; of long results the ends and a sample.
template <typename T, typename F>
absl::Status Expect(absl::string_view what, const T* actual, int64_t count,
                    F expected) {
  for (int64_t i = 0; i < count; ++i) {
    if (i >= 5000 && i < count - 100) i += 60;
    const T value = expected(i);
    if (std::memcmp(&actual[i], &value, sizeof(T)) != 0) {
      return absl::InternalError(absl::StrCat(what, ", element ", i, ": ",
                                              actual[i], ", not ", value));
    }
  }
  return absl::OkStatus();
}

// Every collective once over `count` elements; appends results to `bits`.
template <typename T>
absl::Status Exercise(Communicator& comm, Buffers buffers, DType dtype,
                      bool integers, int64_t count, Lane& lane,
                      std::string* bits) {
  const int rank = comm.rank();
  const int size = comm.size();
  const std::string what =
      absl::StrCat(DTypeName(dtype), " x ", count, ", rank ", rank);
  T* full = buffers.Get<T>(size * count);
  T* other = buffers.Get<T>(size * count);
  T* shard = buffers.Get<T>(count);
  const auto keep = [bits](const T* data, int64_t n) {
    bits->append(reinterpret_cast<const char*>(data), n * sizeof(T));
  };
  const auto fill = [&](T* data, int64_t n, int64_t offset) {
    for (int64_t i = 0; i < n; ++i) {
      data[i] = Value<T>(integers, rank, i + offset);
    }
  };
  // All-gather: element i of rank s's shard lands at s * count + i.
  for (const bool in_place : {false, true}) {
    std::fill_n(full, size * count, T{77});
    T* mine = in_place ? full + rank * count : shard;
    fill(mine, count, 0);
    SG_RETURN_IF_ERROR(comm.AllGather(mine, full, count, dtype, lane));
    for (int s = 0; s < size; ++s) {
      SG_RETURN_IF_ERROR(
          Expect("all_gather " + what, full + s * count, count,
                 [&](int64_t i) { return Value<T>(integers, s, i); }));
    }
    SG_RETURN_IF_ERROR(
        Expect("source of all_gather " + what, mine, count,
               [&](int64_t i) { return Value<T>(integers, rank, i); }));
  }
  fill(full, size * count, 0);
  std::fill_n(other, size * count, T{77});
  SG_RETURN_IF_ERROR(comm.AllToAll(full, other, count, dtype, lane));
  for (int s = 0; s < size; ++s) {
    SG_RETURN_IF_ERROR(Expect(
        "all_to_all " + what, other + s * count, count,
        [&](int64_t i) { return Value<T>(integers, s, rank * count + i); }));
  }
  for (const bool in_place : {false, true}) {
    if (!IsFloating(dtype)) break;
    fill(full, size * count, 0);
    T* mine = in_place ? full + rank * count : shard;
    SG_RETURN_IF_ERROR(comm.ReduceScatter(full, mine, count, dtype, lane));
    SG_RETURN_IF_ERROR(
        Expect("reduce_scatter " + what, mine, count, [&](int64_t i) {
          return Reduced<T>(integers, size, rank * count + i, ReduceOp::kSum);
        }));
    keep(mine, count);
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
    fill(shard, count, 0);
    SG_RETURN_IF_ERROR(comm.AllReduce(shard, count, dtype, op, lane));
    SG_RETURN_IF_ERROR(
        Expect("all_reduce " + what, shard, count,
               [&](int64_t i) { return Reduced<T>(integers, size, i, op); }));
    keep(shard, count);
  }
  for (int root = 0; root < size; ++root) {
    fill(shard, count, root);
    SG_RETURN_IF_ERROR(comm.Broadcast(shard, count, dtype, root, lane));
    SG_RETURN_IF_ERROR(
        Expect("broadcast " + what, shard, count,
               [&](int64_t i) { return Value<T>(integers, root, i + root); }));
  }
  return comm.Barrier(lane);
}

// The table on one communicator; `full` with the large counts.
absl::Status ExerciseAll(Communicator& comm, char* window, Memory memory,
                         bool full, Lane& lane, std::string* bits) {
  const auto fresh = [&] { return Buffers(window, memory, comm.rank()); };
  for (const bool integers : {true, false}) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, kMillion}) {
      if (count == kMillion && (!full || integers)) continue;
      SG_RETURN_IF_ERROR(Exercise<float>(comm, fresh(), DType::kF32, integers,
                                         count, lane, bits));
    }
    // More than one chunk of staging memory.
    SG_RETURN_IF_ERROR(Exercise<double>(comm, fresh(), DType::kF64, integers,
                                        70001, lane, bits));
  }
  SG_RETURN_IF_ERROR(
      Exercise<int32_t>(comm, fresh(), DType::kI32, true, 11, lane, bits));
  return Exercise<int64_t>(comm, fresh(), DType::kI64, true, 11, lane, bits);
}

RankBody TableBody(Memory memory, bool full, bool pooled) {
  return [=](TestRank& test_rank) -> absl::StatusOr<std::string> {
    CommunicatorFactory& factory = test_rank.factory();
    BackwardPool pool;
    Lane lane{.pool = pooled ? &pool : nullptr};
    SG_ASSIGN_OR_RETURN(void* window, factory.AllocateWindow(kWindowBytes));
    SG_ASSIGN_OR_RETURN(auto comm,
                        factory.Create("world", AllRanks(factory.size()), 0));
    std::string bits;
    SG_RETURN_IF_ERROR(ExerciseAll(*comm, static_cast<char*>(window), memory,
                                   full, lane, &bits));
    return absl::StrCat(std::hash<std::string>()(bits));
  };
}

TEST_P(CollectiveTest, TableFromHeap) {
  // The double watches every byte: a million would take long.
  const bool full = GetParam().transport != TestTransport::kNcclDouble;
  RunOk(TableBody(Memory::kHeap, full, false));
}
TEST_P(CollectiveTest, TableFromWindow) {
  if (GetParam().transport == TestTransport::kLoopback ||
      GetParam().transport == TestTransport::kGloo ||
      GetParam().transport == TestTransport::kNcclDouble) {
    GTEST_SKIP() << "has no window of the host";
  }
  RunOk(TableBody(Memory::kWindow, true, false));
}
TEST_P(CollectiveTest, TableFromBothWithPool) {
  RunOk(TableBody(Memory::kMixed, false, true));
}

TEST_P(CollectiveTest, SameBitsAsLoopback) {
  const RankBody body = TableBody(Memory::kHeap, false, false);
  std::vector<std::string> expected;
  for (const RankResult& result :
       RunRanks(TestTransport::kLoopback, GetParam().size,
                CollectiveTest::kLong, body)) {
    expected.push_back(result.output);
  }
  EXPECT_EQ(RunOk(body), expected);
}

TEST_P(CollectiveTest, ManySmallOnes) {
  RunOk([](TestRank& test_rank) -> absl::StatusOr<std::string> {
    CommunicatorFactory& factory = test_rank.factory();
    Lane lane;
    SG_ASSIGN_OR_RETURN(auto comm,
                        factory.Create("world", AllRanks(factory.size()), 0));
    const int64_t size = comm->size();
    for (int64_t step = 0; step < 300; ++step) {
      int64_t value = step * comm->rank();
      SG_RETURN_IF_ERROR(
          comm->AllReduce(&value, 1, DType::kI64, ReduceOp::kSum, lane));
      if (value != step * size * (size - 1) / 2) {
        return absl::InternalError(absl::StrCat("step ", step, ": ", value));
      }
    }
    return "";
  });
}

TEST_P(CollectiveTest, SteadyStateAllocatesNothing) {
  if (GetParam().transport == TestTransport::kGloo ||
      GetParam().transport == TestTransport::kAutomatic ||
      GetParam().transport == TestTransport::kNcclDouble) {
    GTEST_SKIP() << "Gloo and the double allocate";
  }
  RunOk([](TestRank& rank) -> absl::StatusOr<std::string> {
    Lane lane;
    SG_ASSIGN_OR_RETURN(
        auto comm, rank.factory().Create("world", AllRanks(rank.size()), 0));
    std::vector<float> full(rank.size() * 70001);
    std::vector<float> other(full.size());
    int64_t before = 0;
    for (int step = 0; step < 3; ++step) {
      // The first step may allocate. Ranks that are threads share the count:
      // none is elsewhere than in these steps between the barriers.
      SG_RETURN_IF_ERROR(comm->Barrier(lane));
      if (step == 1) before = NumAllocations();
      for (const int64_t count : {1, 70001}) {
        SG_RETURN_IF_ERROR(comm->AllGather(other.data(), full.data(), count,
                                           DType::kF32, lane));
        SG_RETURN_IF_ERROR(comm->ReduceScatter(full.data(), other.data(), count,
                                               DType::kF32, lane));
        SG_RETURN_IF_ERROR(comm->AllReduce(full.data(), count, DType::kF32,
                                           ReduceOp::kSum, lane));
        SG_RETURN_IF_ERROR(comm->AllToAll(full.data(), other.data(), count,
                                          DType::kF32, lane));
        SG_RETURN_IF_ERROR(
            comm->Broadcast(full.data(), count, DType::kF32, 0, lane));
      }
    }
    const int64_t allocated = NumAllocations() - before;
    SG_RETURN_IF_ERROR(comm->Barrier(lane));
    if (allocated == 0) return "";
    return absl::InternalError(absl::StrCat(allocated, " allocations"));
  });
}

TEST_P(CollectiveTest, TwoGroupsOfTwo) {
  if (GetParam().size != 4) GTEST_SKIP() << "needs four ranks";
  RunOk([](TestRank& test_rank) -> absl::StatusOr<std::string> {
    CommunicatorFactory& factory = test_rank.factory();
    Lane lane;
    // Group order is not rank order in the second one.
    const bool even = factory.rank() % 2 == 0;
    const std::vector<int> ranks =
        even ? std::vector<int>{0, 2} : std::vector<int>{3, 1};
    SG_ASSIGN_OR_RETURN(auto world, factory.Create("world", AllRanks(4), 0));
    SG_ASSIGN_OR_RETURN(auto pair, factory.Create("shard", ranks, 0));
    if (ranks[pair->rank()] != factory.rank() || pair->size() != 2) {
      return absl::InternalError("rank within the group");
    }
    int32_t mine = factory.rank();
    int32_t both[2] = {-1, -1};
    SG_RETURN_IF_ERROR(pair->AllGather(&mine, both, 1, DType::kI32, lane));
    if (both[0] != ranks[0] || both[1] != ranks[1]) {
      return absl::InternalError(absl::StrCat(both[0], " ", both[1]));
    }
    int32_t sum = mine;
    SG_RETURN_IF_ERROR(
        world->AllReduce(&sum, 1, DType::kI32, ReduceOp::kSum, lane));
    return sum == 6 ? absl::StatusOr<std::string>("")
                    : absl::InternalError(absl::StrCat(sum));
  });
}

TEST_P(CollectiveTest, ChannelsAreIndependent) {
  RunOk([](TestRank& test_rank) -> absl::StatusOr<std::string> {
    CommunicatorFactory& factory = test_rank.factory();
    constexpr int kChannels = 3;
    std::vector<std::unique_ptr<Communicator>> comms;
    for (int channel = 0; channel < kChannels; ++channel) {
      SG_ASSIGN_OR_RETURN(
          auto comm,
          factory.Create("world", AllRanks(factory.size()), channel));
      comms.push_back(std::move(comm));
    }
    std::vector<absl::Status> status(kChannels);
    std::vector<std::thread> threads;
    for (int channel = 0; channel < kChannels; ++channel) {
      threads.emplace_back([&, channel] {
        Lane lane{.index = channel};
        std::string bits;
        // Different work on each, so that the lanes drift apart.
        for (int i = 0; i <= 20 * channel && status[channel].ok(); ++i) {
          Buffers buffers(nullptr, Memory::kHeap, factory.rank());
          status[channel] =
              Exercise<float>(*comms[channel], std::move(buffers), DType::kF32,
                              false, 1000 * channel + 5, lane, &bits);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const absl::Status& s : status) SG_RETURN_IF_ERROR(s);
    return "";
  });
}

TEST_P(CollectiveTest, CreatedTwiceMeetsInOrder) {
  RunOk([](TestRank& test_rank) -> absl::StatusOr<std::string> {
    CommunicatorFactory& factory = test_rank.factory();
    Lane lane;
    for (int i = 0; i < 2; ++i) {
      SG_ASSIGN_OR_RETURN(auto comm,
                          factory.Create("world", AllRanks(factory.size()), 0));
      SG_RETURN_IF_ERROR(comm->Barrier(lane));
    }
    return "";
  });
}

TEST_P(CollectiveTest, WrongArgumentsAreRefused) {
  RunOk([](TestRank& test_rank) -> absl::StatusOr<std::string> {
    CommunicatorFactory& factory = test_rank.factory();
    Lane lane;
    const std::vector<int> ranks = AllRanks(factory.size());
    for (const std::vector<int>& bad : {std::vector<int>{},
                                        {factory.rank(), factory.rank()},
                                        {factory.rank(), factory.size()},
                                        {-1, factory.rank()}}) {
      if (factory.Create("bad", bad, 0).ok()) {
        return absl::InternalError("a bad group was accepted");
      }
    }
    const auto expect = [&](absl::string_view text, auto call) -> absl::Status {
      SG_ASSIGN_OR_RETURN(auto comm, factory.Create("world", ranks, 0));
      const absl::Status status = call(*comm);
      if (status.code() != absl::StatusCode::kInvalidArgument ||
          !absl::StrContains(status.message(), text)) {
        return absl::InternalError(absl::StrCat("got ", status.ToString()));
      }
      // The first error stays.
      return comm->Barrier(lane) == status ? absl::OkStatus()
                                           : absl::InternalError("not kept");
    };
    char data[64] = {};
    SG_RETURN_IF_ERROR(expect("negative", [&](Communicator& comm) {
      return comm.AllGather(data, data, -1, DType::kF32, lane);
    }));
    SG_RETURN_IF_ERROR(expect("BF16", [&](Communicator& comm) {
      return comm.AllReduce(data, 1, DType::kBF16, ReduceOp::kSum, lane);
    }));
    SG_RETURN_IF_ERROR(expect("I32", [&](Communicator& comm) {
      return comm.ReduceScatter(data, data, 1, DType::kI32, lane);
    }));
    SG_RETURN_IF_ERROR(expect("root", [&](Communicator& comm) {
      return comm.Broadcast(data, 1, DType::kF32, comm.size(), lane);
    }));
    return "";
  });
}

}  // namespace
}  // namespace shardgraph
