// Ranks as threads: a small sharded step over the NCCL double, eager and
// captured, with the mistakes that sharded training makes.

#include <nccl.h>

#include <functional>
#include <thread>

#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/planted.h"
#include "tests/fake_cuda/test_device.h"

namespace shardgraph::fake_cuda {
namespace {

using ::testing::HasSubstr;

#define EXPECT_NCCL(expression) EXPECT_EQ((expression), ncclSuccess)

struct Rank {
  int rank, ranks;
  ncclComm_t comm;
  cudaStream_t compute, communication;
  cudaEvent_t a, b;
};

// Runs `body` on one thread per rank, each with a device, two streams and a
// communicator.
void OnRanks(int ranks, uint64_t seed, const std::function<void(Rank&)>& body,
             std::chrono::milliseconds timeout = std::chrono::seconds(5)) {
  Reset({.seed = seed, .devices = ranks, .collective_timeout = timeout});
  TakeReport();
  ncclUniqueId id;
  EXPECT_NCCL(ncclGetUniqueId(&id));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank rank = {r, ranks, nullptr, nullptr, nullptr, nullptr, nullptr};
      EXPECT_CUDA(cudaSetDevice(r));
      EXPECT_CUDA(
          cudaStreamCreateWithFlags(&rank.compute, cudaStreamNonBlocking));
      EXPECT_CUDA(cudaStreamCreateWithFlags(&rank.communication,
                                            cudaStreamNonBlocking));
      EXPECT_CUDA(cudaEventCreateWithFlags(&rank.a, cudaEventDisableTiming));
      EXPECT_CUDA(cudaEventCreateWithFlags(&rank.b, cudaEventDisableTiming));
      EXPECT_NCCL(ncclCommInitRank(&rank.comm, ranks, id, r));
      body(rank);
      ncclCommDestroy(rank.comm);
      cudaEventDestroy(rank.a);
      cudaEventDestroy(rank.b);
      cudaStreamDestroy(rank.compute);
      cudaStreamDestroy(rank.communication);
    });
  }
  for (auto& t : threads) t.join();
}

// gathered = all-gather(shard); gradient = 2 gathered + 1; shard =
// reduce-scatter(gradient). Communication on its own stream.
void Step(Rank& r, float* shard, float* gathered, float* gradient,
          const float* one, int n, bool second_edge = true) {
  const int all = n * r.ranks;
  EXPECT_CUDA(cudaEventRecord(r.a, r.compute));
  EXPECT_CUDA(cudaStreamWaitEvent(r.communication, r.a, 0));
  EXPECT_NCCL(
      ncclAllGather(shard, gathered, n, ncclFloat32, r.comm, r.communication));
  EXPECT_CUDA(cudaEventRecord(r.b, r.communication));
  EXPECT_CUDA(cudaStreamWaitEvent(r.compute, r.b, 0));
  EXPECT_CUDA(Affine(gradient, gathered, 2.0f, one, all, r.compute));
  if (second_edge) {
    EXPECT_CUDA(cudaEventRecord(r.a, r.compute));
    EXPECT_CUDA(cudaStreamWaitEvent(r.communication, r.a, 0));
  }
  EXPECT_NCCL(ncclReduceScatter(gradient, shard, n, ncclFloat32, ncclSum,
                                r.comm, r.communication));
  EXPECT_CUDA(cudaEventRecord(r.b, r.communication));
  EXPECT_CUDA(cudaStreamWaitEvent(r.compute, r.b, 0));
}

TEST(Nccl, ShardedStepEagerAndCaptured) {
  for (int ranks : {1, 2, 4}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      OnRanks(ranks, seed, [&](Rank& r) {
        const int n = 100;
        DeviceArray<float> shard(std::vector<float>(n, r.rank + 1.0f),
                                 r.compute),
            gathered(n * ranks, r.compute), gradient(n * ranks, r.compute),
            one(std::vector<float>(1, 1.0f), r.compute);
        auto step = [&] {
          Step(r, shard.get(), gathered.get(), gradient.get(), one.get(), n);
        };
        float want = r.rank + 1.0f;
        for (int i = 0; i < 2; ++i) {
          step();
          want = ranks * (2 * want + 1);
        }
        EXPECT_EQ(shard.Get(), std::vector<float>(n, want));
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        EXPECT_CUDA(cudaStreamBeginCapture(r.compute,
                                           cudaStreamCaptureModeThreadLocal));
        step();
        EXPECT_CUDA(cudaStreamEndCapture(r.compute, &graph));
        EXPECT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
        EXPECT_CUDA(cudaGraphDestroy(graph));
        for (int i = 0; i < 3; ++i) {
          EXPECT_CUDA(cudaGraphLaunch(exec, r.compute));
          want = ranks * (2 * want + 1);
        }
        EXPECT_EQ(shard.Get(), std::vector<float>(n, want));
        EXPECT_CUDA(cudaGraphExecDestroy(exec));
      });
      EXPECT_EQ(TakeReport(), "") << ranks << " ranks, seed " << seed;
    }
  }
}

TEST(Nccl, MissingEdgeToCommunication) {
  OnRanks(2, 0, [&](Rank& r) {
    const int n = 100;
    DeviceArray<float> shard(std::vector<float>(n, 1.0f), r.compute),
        gathered(2 * n, r.compute), gradient(2 * n, r.compute),
        one(std::vector<float>(1, 1.0f), r.compute);
    Step(r, shard.get(), gathered.get(), gradient.get(), one.get(), n,
         /*second_edge=*/false);
    cudaStreamSynchronize(r.compute);
    cudaStreamSynchronize(r.communication);
  });
  const std::string report = TakeReport();
  if (KernelsAreChecked()) {
    EXPECT_THAT(report, HasSubstr("missing order: "));
  }
}

TEST(Nccl, RanksDisagree) {
  OnRanks(2, 0, [&](Rank& r) {
    DeviceArray<float> x(std::vector<float>(100, 1.0f), r.compute),
        y(100, r.compute);
    EXPECT_NCCL(ncclAllReduce(x.get(), y.get(), 50 + r.rank, ncclFloat32,
                              ncclSum, r.comm, r.compute));
    EXPECT_EQ(cudaStreamSynchronize(r.compute), cudaErrorUnknown);
  });
  const std::string report = TakeReport();
  EXPECT_THAT(
      report,
      HasSubstr("ranks disagree: rank 0 calls all-reduce of 50 elements"));
}

TEST(Nccl, RanksCallInDifferentOrder) {
  OnRanks(2, 0, [&](Rank& r) {
    DeviceArray<float> x(std::vector<float>(100, 1.0f), r.compute),
        y(200, r.compute);
    for (int i = 0; i < 2; ++i) {
      const ncclResult_t result =
          i == r.rank ? ncclAllReduce(x.get(), y.get(), 100, ncclFloat32,
                                      ncclSum, r.comm, r.compute)
                      : ncclAllGather(x.get(), y.get(), 100, ncclFloat32,
                                      r.comm, r.compute);
      // The second call may come when it is known that the first ones differ.
      if (i == 0) {
        EXPECT_EQ(result, ncclSuccess);
      }
    }
    EXPECT_EQ(cudaStreamSynchronize(r.compute), cudaErrorUnknown);
  });
  EXPECT_THAT(TakeReport(), HasSubstr("ranks disagree: rank 0 calls "
                                      "all-reduce of 100 elements"));
}

// Each communicator by itself is used alike by both ranks.
TEST(Nccl, RanksCallCommunicatorsInDifferentOrder) {
  for (const bool swapped : {false, true}) {
    Reset({.devices = 2, .check_communicator_order = true});
    TakeReport();
    ncclUniqueId ids[2];
    for (ncclUniqueId& id : ids) EXPECT_NCCL(ncclGetUniqueId(&id));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        EXPECT_CUDA(cudaSetDevice(rank));
        cudaStream_t streams[2];
        ncclComm_t comms[2];
        for (int i = 0; i < 2; ++i) {
          EXPECT_CUDA(
              cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
          EXPECT_NCCL(ncclCommInitRank(&comms[i], 2, ids[i], rank));
        }
        {
          DeviceArray<float> x(std::vector<float>(10, 1.0f), streams[0]),
              y(std::vector<float>(10, 1.0f), streams[1]);
          for (int i = 0; i < 4; ++i) {
            const int which = swapped && rank == 1 ? 1 - i % 2 : i % 2;
            float* const data = which == 0 ? x.get() : y.get();
            EXPECT_NCCL(ncclAllReduce(data, data, 10, ncclFloat32, ncclSum,
                                      comms[which], streams[which]));
          }
          EXPECT_CUDA(cudaStreamSynchronize(streams[0]));
          EXPECT_CUDA(cudaStreamSynchronize(streams[1]));
        }
        for (int i = 0; i < 2; ++i) {
          EXPECT_NCCL(ncclCommDestroy(comms[i]));
          EXPECT_CUDA(cudaStreamDestroy(streams[i]));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::string report = TakeReport();
    if (swapped) {
      EXPECT_THAT(report, HasSubstr("order of communicators: before its "));
    } else {
      EXPECT_EQ(report, "");
    }
  }
}

// A page for a rank, `offset` bytes into its window.
struct Page {
  explicit Page(Rank& r) : rank(r) {
    EXPECT_NCCL(ncclMemAlloc(&memory, 4096));
    EXPECT_CUDA(cudaMemsetAsync(memory, 0, 4096, r.compute));
    EXPECT_CUDA(cudaStreamSynchronize(r.compute));
  }
  ~Page() { EXPECT_NCCL(ncclMemFree(memory)); }
  void Register(size_t bytes) {
    EXPECT_NCCL(ncclCommWindowRegister(rank.comm, memory, bytes, &window,
                                       NCCL_WIN_COLL_SYMMETRIC));
  }
  void Deregister() {
    EXPECT_NCCL(ncclCommWindowDeregister(rank.comm, window));
  }
  void AllReduceAt(int64_t offset) {
    char* const at = static_cast<char*>(memory) + offset;
    EXPECT_NCCL(ncclAllReduce(at, at, 8, ncclFloat32, ncclSum, rank.comm,
                              rank.compute));
    EXPECT_CUDA(cudaStreamSynchronize(rank.compute));
  }

  Rank& rank;
  void* memory = nullptr;
  ncclWindow_t window = nullptr;
};

TEST(Nccl, WindowsAreRegisteredAlike) {
  OnRanks(2, 0, [&](Rank& r) {
    Page page(r);
    EXPECT_EQ(
        ncclCommWindowRegister(r.comm, static_cast<char*>(page.memory) + 8, 64,
                               &page.window, 0),
        ncclInvalidArgument);
    page.Register(4096);
    page.AllReduceAt(256);
    page.Deregister();
    EXPECT_EQ(ncclCommWindowDeregister(r.comm, page.window),
              ncclInvalidArgument);
  });
  EXPECT_EQ(TakeReport(), "");
}

TEST(Nccl, PlantedWindowsOfDifferentSizes) {
  OnRanks(2, 0, [&](Rank& r) {
    Page page(r);
    page.Register(r.rank == 0 ? 4096 : 2048);
    page.Deregister();
  });
  EXPECT_THAT(TakeReport(), HasSubstr("ranks disagree: window 0 has "));
}

TEST(Nccl, PlantedOffsetsInWindows) {
  OnRanks(2, 0, [&](Rank& r) {
    Page page(r);
    page.Register(4096);
    page.AllReduceAt(r.rank * 64);
    page.Deregister();
  });
  EXPECT_THAT(TakeReport(),
              HasSubstr("windows are not symmetric: the all-reduce of 8 "
                        "elements of type 7 sends at byte 0 of window 0 on "
                        "rank 0, at byte 64 of window 0 on rank 1"));
}

TEST(Nccl, PlantedWindowThatOutlivesItsMemory) {
  OnRanks(2, 0, [&](Rank& r) { Page(r).Register(4096); });
  EXPECT_THAT(TakeReport(),
              HasSubstr("ncclMemFree while a window is registered"));
}

TEST(Nccl, PlantedWindowThatOutlivesItsCommunicator) {
  OnRanks(2, 0, [&](Rank& r) {
    Page page(r);
    page.Register(4096);
    EXPECT_NCCL(ncclCommFinalize(r.comm));
    page.Deregister();
  });
  EXPECT_THAT(TakeReport(),
              HasSubstr("ncclCommFinalize while a window is registered"));
}

TEST(Nccl, RankMissing) {
  OnRanks(
      2, 0,
      [&](Rank& r) {
        DeviceArray<float> x(std::vector<float>(100, 1.0f), r.compute),
            y(100, r.compute);
        if (r.rank == 1) return;
        EXPECT_NCCL(ncclAllReduce(x.get(), y.get(), 100, ncclFloat32, ncclSum,
                                  r.comm, r.compute));
        EXPECT_EQ(cudaStreamSynchronize(r.compute), cudaErrorUnknown);
      },
      std::chrono::milliseconds(200));
  const std::string report = TakeReport();
  EXPECT_THAT(report, HasSubstr("1 of 2 ranks have come"));
  Reset({});
  TakeReport();
}

}  // namespace
}  // namespace shardgraph::fake_cuda
