// NCCL's communicators over the CUDA double, ranks as threads: the suite of
// every transport, then what is special about a device.

#include "kernels/collective/nccl.h"

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/collective/collective_conformance.h"
#include "kernels/collective/store.h"
#include "kernels/collective/test_ranks.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/status.h"
#include "kernels/status_macros.h"
#include "tests/fake_cuda/control.h"

namespace shardgraph {
namespace {

using ::testing::HasSubstr;

// A communicator between host buffers: copies to the device, runs the
// collective on a stream, copies back.
class StagedCommunicator final : public Communicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> inner, int device)
      : inner_(std::move(inner)), device_(device) {
    cudaSetDevice(device_);
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  ~StagedCommunicator() override {
    cudaStreamDestroy(stream_);
    for (void* buffer : buffers_) cudaFree(buffer);
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  absl::Status AllGather(const void* shard, void* full, int64_t count,
                         DType dtype, Lane&) override {
    const int64_t bytes = count * SizeOf(dtype);
    return Staged(shard, bytes, full, bytes * size(),
                  [&](void* in, void* out, Lane& lane) {
                    return inner_->AllGather(in, out, count, dtype, lane);
                  });
  }
  absl::Status ReduceScatter(const void* full, void* shard, int64_t count,
                             DType dtype, Lane&) override {
    const int64_t bytes = count * SizeOf(dtype);
    return Staged(full, bytes * size(), shard, bytes,
                  [&](void* in, void* out, Lane& lane) {
                    return inner_->ReduceScatter(in, out, count, dtype, lane);
                  });
  }
  absl::Status AllReduce(void* data, int64_t count, DType dtype, ReduceOp op,
                         Lane&) override {
    const int64_t bytes = count * SizeOf(dtype);
    return Staged(data, bytes, data, bytes, [&](void* in, void*, Lane& lane) {
      return inner_->AllReduce(in, count, dtype, op, lane);
    });
  }
  absl::Status AllToAll(const void* send, void* receive, int64_t count,
                        DType dtype, Lane&) override {
    const int64_t bytes = count * SizeOf(dtype) * size();
    return Staged(send, bytes, receive, bytes,
                  [&](void* in, void* out, Lane& lane) {
                    return inner_->AllToAll(in, out, count, dtype, lane);
                  });
  }
  absl::Status Broadcast(void* data, int64_t count, DType dtype, int root,
                         Lane&) override {
    const int64_t bytes = count * SizeOf(dtype);
    return Staged(data, bytes, data, bytes, [&](void* in, void*, Lane& lane) {
      return inner_->Broadcast(in, count, dtype, root, lane);
    });
  }
  absl::Status Barrier(Lane&) override {
    return Staged(nullptr, 0, nullptr, 0, [&](void*, void*, Lane& lane) {
      return inner_->Barrier(lane);
    });
  }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  absl::StatusOr<char*> Buffer(int i, int64_t bytes) {
    if (bytes > capacity_[i]) {
      SG_RETURN_IF_CUDA_ERROR(cudaFree(buffers_[i]));
      SG_RETURN_IF_CUDA_ERROR(cudaMalloc(&buffers_[i], bytes));
      capacity_[i] = bytes;
    }
    return static_cast<char*>(buffers_[i]);
  }

  template <typename F>
  absl::Status Staged(const void* in, int64_t in_bytes, void* out,
                      int64_t out_bytes, F collective) {
    Lane lane{.stream = stream_};
    SG_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_));
    if (in_bytes < 0) return collective(out, out, lane);
    SG_ASSIGN_OR_RETURN(char* const device_in, Buffer(0, in_bytes));
    SG_ASSIGN_OR_RETURN(char* device_out, Buffer(1, out_bytes));
    if (in == out && in_bytes == out_bytes) device_out = device_in;
    // A shard that is a piece of what is gathered or scattered.
    const char* const in_begin = static_cast<const char*>(in);
    char* const out_begin = static_cast<char*>(out);
    char* given = device_in;
    if (in_bytes < out_bytes && in_begin >= out_begin &&
        in_begin < out_begin + out_bytes) {
      given = device_out + (in_begin - out_begin);
    } else if (out_bytes < in_bytes && out_begin >= in_begin &&
               out_begin < in_begin + in_bytes) {
      device_out = device_in + (out_begin - in_begin);
    }
    if (in_bytes > 0) {
      SG_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(given, in, in_bytes,
                                              cudaMemcpyHostToDevice, stream_));
    }
    SG_RETURN_IF_ERROR(collective(given, device_out, lane));
    if (out_bytes > 0) {
      SG_RETURN_IF_CUDA_ERROR(cudaMemcpyAsync(out, device_out, out_bytes,
                                              cudaMemcpyDeviceToHost, stream_));
    }
    SG_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(stream_));
    return absl::OkStatus();
  }

  const std::unique_ptr<Communicator> inner_;
  const int device_;
  cudaStream_t stream_ = nullptr;
  void* buffers_[2] = {};
  int64_t capacity_[2] = {};
};

class StagedFactory final : public CommunicatorFactory {
 public:
  explicit StagedFactory(NcclFactory& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    SG_ASSIGN_OR_RETURN(auto inner, inner_.Create(group, ranks, channel));
    return std::make_unique<StagedCommunicator>(std::move(inner), rank());
  }
  absl::StatusOr<void*> AllocateWindow(int64_t) override { return nullptr; }

 private:
  NcclFactory& inner_;
};

class DeviceRank final : public TestRank {
 public:
  DeviceRank(CommunicatorFactory& factory, Store& store)
      : factory_(factory), store_(store) {}
  CommunicatorFactory& factory() override { return factory_; }
  Store& store() override { return store_; }
  void Die() override { abort(); }
  void AskToBeKilled() override { abort(); }

 private:
  CommunicatorFactory& factory_;
  Store& store_;
};

// Runs `body` on a thread per rank, each with a device.
void OnDevices(int size, uint64_t seed, absl::Duration timeout,
               const std::function<void(NcclFactory&, Store&)>& body) {
  fake_cuda::Reset({.seed = seed,
                    .devices = size,
                    .collective_timeout = std::chrono::milliseconds(
                        absl::ToInt64Milliseconds(timeout))});
  EXPECT_EQ(fake_cuda::TakeReport(), "");
  InProcessStore store;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      auto factory = MakeNcclFactory(store, {.rank = r, .size = size});
      ASSERT_TRUE(factory.ok()) << factory.status();
      body(**factory, store);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<RankResult> RunOnDouble(int size, absl::Duration timeout,
                                    const RankBody& body) {
  std::vector<RankResult> results(size);
  OnDevices(size, size, timeout, [&](NcclFactory& factory, Store& store) {
    StagedFactory staged(factory);
    DeviceRank rank(staged, store);
    absl::StatusOr<std::string> result = body(rank);
    results[factory.rank()].status = result.status();
    if (result.ok()) results[factory.rank()].output = *std::move(result);
  });
  fake_cuda::Reset({});
  EXPECT_EQ(fake_cuda::TakeReport(), "");
  return results;
}

INSTANTIATE_TEST_SUITE_P(
    Nccl, CollectiveTest,
    testing::Values(TestWorld{TestTransport::kNcclDouble, 1, RunOnDouble},
                    TestWorld{TestTransport::kNcclDouble, 2, RunOnDouble},
                    TestWorld{TestTransport::kNcclDouble, 3, RunOnDouble},
                    TestWorld{TestTransport::kNcclDouble, 4, RunOnDouble}),
    TestWorldName);

TEST(Nccl, BadOptionsNameTheField) {
  InProcessStore store;
  EXPECT_THAT(
      std::string(
          MakeNcclFactory(store, {.rank = 2, .size = 2}).status().message()),
      HasSubstr("NcclOptions.rank is 2 of 2"));
}

TEST(Nccl, ARankThatDoesNotComeIsNamed) {
  fake_cuda::Reset({.devices = 2});
  InProcessStore store;
  auto factory = MakeNcclFactory(
      store, {.rank = 0, .size = 2, .timeout = absl::Milliseconds(50)});
  ASSERT_TRUE(factory.ok());
  const absl::Status status =
      (*factory)->Create("world", AllRanks(2), 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("rank 1 did not come within 50ms"));
}

// A rank dies between its arrival and NCCL's connections, or it runs on and
// still none comes to be.
TEST(Nccl, ARankThatDoesNotConnectIsNamed) {
  for (const bool runs : {false, true}) {
    fake_cuda::Reset({.devices = 2});
    InProcessStore store;
    EXPECT_TRUE(store.Set("nccl/world/3/0,1/0/rank_1", "").ok());
    if (runs) {
      EXPECT_TRUE(store.Set("nccl/world/3/0,1/0/late/rank_1", "").ok());
    }
    auto factory = MakeNcclFactory(
        store, {.rank = 0, .size = 2, .timeout = absl::Milliseconds(50)});
    ASSERT_TRUE(factory.ok());
    const absl::Status status =
        (*factory)->Create("world", AllRanks(2), 3).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("ncclCommInitRankConfig of rank 0 of 2 of the NCCL "
                  "communicator of ranks 0, 1 did not end within 50ms"));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(runs ? "all ranks still run"
                               : "rank 1 did not come within 50ms"));
    factory->reset();
    fake_cuda::Reset({});
    EXPECT_EQ(fake_cuda::TakeReport(), "");
  }
}

TEST(Nccl, AStoreWithSomethingElseIsAnError) {
  fake_cuda::Reset({.devices = 2});
  InProcessStore store;
  EXPECT_TRUE(store.Set("nccl/world/3/0,1/0/rank_0", "not an id").ok());
  auto factory = MakeNcclFactory(store, {.rank = 1, .size = 2});
  ASSERT_TRUE(factory.ok());
  EXPECT_THAT(
      std::string(
          (*factory)->Create("world", AllRanks(2), 3).status().message()),
      HasSubstr("rank 0 gave 9 bytes at nccl/world/3/0,1/0, not 128"));
}

TEST(Nccl, WindowsAreZeroAndAligned) {
  OnDevices(2, 0, absl::Seconds(60), [](NcclFactory& factory, Store&) {
    const auto window = factory.AllocateWindow(5000);
    ASSERT_TRUE(window.ok()) << window.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*window) % 4096, 0u);
    std::string bytes(5000, 'x');
    EXPECT_EQ(cudaMemcpy(bytes.data(), *window, 5000, cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_EQ(bytes, std::string(5000, '\0'));
  });
  EXPECT_EQ(fake_cuda::TakeReport(), "");
}

TEST(Nccl, AWindowThatDoesNotFitIsNamed) {
  OnDevices(1, 0, absl::Seconds(60), [](NcclFactory& factory, Store&) {
    const absl::Status status =
        factory.AllocateWindow(int64_t{1} << 60).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("ncclMemAlloc of 1152921504606846976 bytes: NCCL "
                          "error 1 ("));
  });
}

const KernelTable& NoKernels() {
  static const KernelTable* const table = new KernelTable({});
  return *table;
}

// A backend whose lane 1 all-reduces one value, again and again.
struct ReducingRank {
  explicit ReducingRank(NcclFactory& factory)
      : backend(*MakeCudaBackend({.kernels = &NoKernels(),
                                  .device = factory.rank(),
                                  .health = [&] { return factory.Health(); }})),
        communicator(*factory.Create("world", AllRanks(factory.size()), 1)),
        value(static_cast<int32_t*>(*backend->Allocate(sizeof(int32_t)))),
        kernel(MakeKernel([this](Lane& lane) {
          return communicator->AllReduce(value, 1, DType::kI32, ReduceOp::kSum,
                                         lane);
        })) {
    EXPECT_TRUE(backend->Prepare(2, 0).ok());
    const int32_t one = 1;
    EXPECT_TRUE(backend->CopyToDevice(value, &one, sizeof(one)).ok());
  }

  // In the order of destruction: graphs, communicators, memory.
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Communicator> communicator;
  int32_t* const value;
  std::unique_ptr<PreparedKernel> kernel;
};

TEST(Nccl, CapturedCollectivesAreReplayed) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    OnDevices(3, seed, absl::Seconds(60), [](NcclFactory& factory, Store&) {
      ReducingRank rank(factory);
      rank.backend->Launch(1, rank.kernel.get());
      ASSERT_TRUE(rank.backend->Synchronize().ok());
      ASSERT_TRUE(rank.backend->BeginCapture().ok());
      rank.backend->Launch(1, rank.kernel.get());
      auto recording = rank.backend->EndCapture();
      ASSERT_TRUE(recording.ok()) << recording.status();
      for (int i = 0; i < 4; ++i) rank.backend->Replay(recording->get());
      int32_t value = 0;
      EXPECT_TRUE(
          rank.backend->CopyToHost(&value, rank.value, sizeof(value)).ok());
      EXPECT_EQ(value, 3 * 3 * 3 * 3 * 3);
    });
    EXPECT_EQ(fake_cuda::TakeReport(), "") << "seed " << seed;
  }
}

// One rank does not come; the other is aborted, and nothing hangs.
TEST(Nccl, AnAbortEndsTheWait) {
  OnDevices(2, 0, absl::Seconds(60), [](NcclFactory& factory, Store& store) {
    ReducingRank rank(factory);
    if (factory.rank() == 1) {
      EXPECT_TRUE(store.Get("aborted", absl::Seconds(60)).ok());
      return;
    }
    rank.backend->Launch(1, rank.kernel.get());
    std::thread watchdog([&] {
      rank.communicator->Abort(absl::DeadlineExceededError("rank 1 is late"));
    });
    const absl::Status status = rank.backend->Synchronize();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 is late"));
    EXPECT_EQ(rank.kernel->Launch(*std::make_unique<Lane>()).code(),
              absl::StatusCode::kDeadlineExceeded);
    watchdog.join();
    rank.communicator.reset();
    EXPECT_TRUE(store.Set("aborted", "").ok());
  });
  EXPECT_EQ(fake_cuda::TakeReport(), "");
}

// Both communicators have a collective in the graph that is being replayed.
TEST(Nccl, AllAreAbortedAtOnce) {
  OnDevices(2, 0, absl::Seconds(60), [](NcclFactory& factory, Store& store) {
    ReducingRank first(factory);
    auto second = *factory.Create("world", AllRanks(2), 2);
    auto* const value =
        static_cast<int32_t*>(*first.backend->Allocate(sizeof(int32_t)));
    const auto kernel = MakeKernel([&](Lane& lane) {
      return second->AllReduce(value, 1, DType::kI32, ReduceOp::kSum, lane);
    });
    ASSERT_TRUE(first.backend->BeginCapture().ok());
    first.backend->Launch(1, first.kernel.get());
    first.backend->Launch(0, kernel.get());
    auto recording = first.backend->EndCapture();
    ASSERT_TRUE(recording.ok()) << recording.status();
    if (factory.rank() == 1) {
      EXPECT_TRUE(store.Get("aborted", absl::Seconds(60)).ok());
      recording->reset();
      return;
    }
    first.backend->Replay(recording->get());
    second->Abort(absl::DeadlineExceededError("rank 1 is late"));
    EXPECT_EQ(first.backend->Synchronize().code(),
              absl::StatusCode::kDeadlineExceeded);
    recording->reset();
    first.communicator.reset();
    EXPECT_EQ(factory.Health().code(), absl::StatusCode::kDeadlineExceeded);
    second.reset();
    EXPECT_TRUE(store.Set("aborted", "").ok());
  });
  EXPECT_EQ(fake_cuda::TakeReport(), "");
}

// Each communicator of several ranks registers the newest window, once.
TEST(Nccl, WindowsAreRegisteredWithCommunicators) {
  OnDevices(2, 0, absl::Seconds(60), [](NcclFactory& factory, Store&) {
    auto before = factory.Create("world", AllRanks(2), 1);
    ASSERT_TRUE(before.ok()) << before.status();
    ASSERT_TRUE(factory.AllocateWindow(5000).ok());
    auto with = factory.Create("world", AllRanks(2), 2);
    ASSERT_TRUE(with.ok()) << with.status();
    const std::vector<int> self = {factory.rank()};
    EXPECT_TRUE(factory.Create("self", self, 3).ok());
  });
  EXPECT_EQ(fake_cuda::GetCalls()["ncclCommWindowRegister"], 2);
  EXPECT_EQ(fake_cuda::GetCalls()["ncclCommWindowDeregister"], 2);
  EXPECT_EQ(fake_cuda::TakeReport(), "");
}

// One rank has another window.
TEST(Nccl, DifferentWindowsAreFound) {
  OnDevices(2, 0, absl::Seconds(60), [](NcclFactory& factory, Store&) {
    ASSERT_TRUE(factory.AllocateWindow(5000 + 4096 * factory.rank()).ok());
    EXPECT_TRUE(factory.Create("world", AllRanks(2), 2).ok());
  });
  EXPECT_THAT(fake_cuda::TakeReport(), HasSubstr("ranks disagree: window 0"));
}

TEST(Nccl, ACommunicatorThatGoesBeforeItsGraphIsFound) {
  OnDevices(1, 0, absl::Seconds(60), [](NcclFactory& factory, Store&) {
    ReducingRank rank(factory);
    ASSERT_TRUE(rank.backend->BeginCapture().ok());
    rank.backend->Launch(1, rank.kernel.get());
    auto recording = rank.backend->EndCapture();
    ASSERT_TRUE(recording.ok()) << recording.status();
    rank.communicator.reset();
  });
  EXPECT_THAT(fake_cuda::TakeReport(),
              HasSubstr("while a captured graph holds collectives"));
}

}  // namespace
}  // namespace shardgraph
