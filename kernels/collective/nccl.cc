#include "kernels/collective/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "kernels/collective/communicator_base.h"
#include "kernels/cuda/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/status_macros.h"

#if NCCL_VERSION_CODE < 22800
#error "NCCL 2.28 or newer is needed: ncclAlltoAll"
#endif

namespace shardgraph {
namespace {

using cuda::StreamOf;

// How long a rank that runs takes to say so, when all have run out of time.
constexpr absl::Duration kAnswerWithin = absl::Seconds(10);

// OK, or an error that says what was done, NCCL's name of the error and its
// last message.
absl::Status NcclStatus(ncclResult_t result, absl::string_view what,
                        ncclComm_t comm) {
  if (result == ncclSuccess || result == ncclInProgress)
    return absl::OkStatus();
  const char* const detail = ncclGetLastError(comm);
  return absl::Status(
      result == ncclRemoteError ? absl::StatusCode::kUnavailable
                                : absl::StatusCode::kInternal,
      absl::StrCat(what, ": NCCL error ", static_cast<int>(result), " (",
                   ncclGetErrorString(result), ")",
                   detail == nullptr || *detail == '\0' ? "" : ": ",
                   detail == nullptr ? "" : detail));
}

ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kF64:
      return ncclFloat64;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
    case DType::kU32:
      return ncclUint32;
    default:
      return ncclUint8;
  }
}

class NcclCommunicator;

class Factory final : public NcclFactory {
 public:
  Factory(Store& store, const NcclOptions& options)
      : store_(store), options_(options) {}
  ~Factory() override {
    for (const Window& window : windows_) ncclMemFree(window.data);
  }

  struct Window {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  // The newest; of no data if there is none.
  Window window() const {
    return windows_.empty() ? Window() : windows_.back();
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }
  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override;
  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override;
  void SetTimeout(absl::Duration timeout) override {
    std::lock_guard<std::mutex> lock(mutex_);
    options_.timeout = timeout;
  }
  absl::Duration timeout() {
    std::lock_guard<std::mutex> lock(mutex_);
    return options_.timeout;
  }
  absl::Status Health() override;

  void Add(NcclCommunicator* communicator) {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators_.insert(communicator);
  }
  void Remove(NcclCommunicator* communicator) {
    std::lock_guard<std::mutex> lock(mutex_);
    communicators_.erase(communicator);
  }
  // An abort frees memory, which waits for what else is on the device; so if
  // one communicator is broken, all are aborted at once.
  void AbortAllIfBroken();

 private:
  Store& store_;
  NcclOptions options_;  // timeout guarded by mutex_
  std::vector<Window> windows_;
  // How many of each name this rank has made: the n-th meets the others' n-th.
  std::map<std::string, int> created_;
  std::mutex mutex_;
  std::set<NcclCommunicator*> communicators_;  // guarded by mutex_
};

class NcclCommunicator final : public CommunicatorBase {
 public:
  NcclCommunicator(absl::string_view group, absl::Span<const int> ranks,
                   int world_rank, int channel, Factory* factory)
      : CommunicatorBase(group, ranks, world_rank, channel),
        factory_(factory) {}

  ~NcclCommunicator() override {
    factory_->AbortAllIfBroken();
    factory_->Remove(this);
    if (comm_ != nullptr) {
      if (window_ != nullptr) {
        Settle(ncclCommWindowDeregister(comm_, window_),
               "ncclCommWindowDeregister")
            .IgnoreError();  // finalizing fails then, too
      }
      if (Settle(ncclCommFinalize(comm_), "ncclCommFinalize").ok()) {
        ncclCommDestroy(comm_);
      } else {
        ncclCommAbort(comm_);
      }
    }
    cudaFree(token_);
  }

  // DeadlineExceeded where a rank that was there a moment ago does not go on.
  absl::Status Connect(const ncclUniqueId& id) {
    void* token = nullptr;
    SG_RETURN_IF_CUDA_ERROR(cudaMalloc(&token, sizeof(int32_t)));
    token_ = token;
    SG_RETURN_IF_CUDA_ERROR(cudaMemset(token_, 0, sizeof(int32_t)));
    // Lanes do not wait for the legacy stream. (Waiting for the whole device
    // could be waiting for a collective of ranks that wait for this one.)
    SG_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // else nothing ends a wait for a rank that has died
    absl::Status status =
        Settle(ncclCommInitRankConfig(&comm_, size(), id, rank(), &config),
               absl::StrCat("ncclCommInitRankConfig of rank ", rank(), " of ",
                            size(), " of ", Name()));
    if (status.ok()) status = RegisterWindow();
    if (status.ok()) {
      factory_->Add(this);
    } else if (comm_ != nullptr) {
      ncclCommAbort(std::exchange(comm_, nullptr));
    }
    return status;
  }

  // OK, or what broke it; an error on the device breaks it.
  absl::Status Health() {
    SG_RETURN_IF_ERROR(first_error());
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    const absl::Status status =
        NcclStatus(asked == ncclSuccess ? state : asked, Name(), comm_);
    if (!status.ok()) Abort(status);
    return status;
  }

  bool broken() const { return !first_error().ok(); }

  // Within a group of NCCL's. Breaks it, too.
  void AbortNccl() {
    if (comm_ != nullptr) ncclCommAbort(comm_);
    comm_ = nullptr;
    Abort(absl::AbortedError("another communicator of this rank broke"));
  }

 protected:
  absl::Status Run(const CollectiveCall& call, const void* in, void* out,
                   Lane& lane) override {
    const cudaStream_t stream = StreamOf(lane);
    const ncclDataType_t type = TypeOf(call.element());
    const ncclRedOp_t op =
        call.reduce_op() == ReduceOp::kMax ? ncclMax : ncclSum;
    size_t count = call.count;
    if (type == ncclUint8) count *= SizeOf(call.element());
    ncclResult_t result = ncclSuccess;
    switch (call.collective) {
      case Collective::kAllGather:
        result = ncclAllGather(in, out, count, type, comm_, stream);
        break;
      case Collective::kReduceScatter:
        result =
            ncclReduceScatter(in, out, count, type, ncclSum, comm_, stream);
        break;
      case Collective::kAllReduce:
        result = ncclAllReduce(in, out, count, type, op, comm_, stream);
        break;
      case Collective::kAllToAll:
        result = ncclAlltoAll(in, out, count, type, comm_, stream);
        break;
      case Collective::kBroadcast:
        result = ncclBroadcast(in, out, count, type, call.root, comm_, stream);
        break;
      case Collective::kBarrier:
        result =
            ncclAllReduce(token_, token_, 1, ncclInt32, ncclSum, comm_, stream);
        break;
    }
    if (result == ncclSuccess) [[likely]] {
      return absl::OkStatus();
    }
    return Settle(result, Describe(call));
  }

  void OnAbort(const absl::Status& reason) override {}

 private:
  // Collective. NCCL gives no handle where it has no use for the window.
  absl::Status RegisterWindow() {
    const Factory::Window window = factory_->window();
    if (size() == 1 || window.data == nullptr) return absl::OkStatus();
    const absl::Status status =
        Settle(ncclCommWindowRegister(comm_, window.data, window.bytes,
                                      &window_, NCCL_WIN_COLL_SYMMETRIC),
               absl::StrCat("ncclCommWindowRegister of ", window.bytes,
                            " bytes with ", Name()));
    if (status.ok() || absl::IsDeadlineExceeded(status)) return status;
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "; NCCL_WIN_ENABLE=0 does without"));
  }

  // Waits for a call that goes on behind the host's back, as connecting does.
  // Until then nothing else may be called on the communicator or enqueued.
  absl::Status Settle(ncclResult_t result, absl::string_view what) {
    const absl::Duration timeout = factory_->timeout();
    const absl::Time deadline = absl::Now() + timeout;
    while (result == ncclInProgress) {
      SG_RETURN_IF_ERROR(first_error());
      if (absl::Now() > deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            what, " did not end within ", absl::FormatDuration(timeout)));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
      if (asked != ncclSuccess) result = asked;
    }
    return NcclStatus(result, what, comm_);
  }

  std::string Name() const {
    return absl::StrCat("the NCCL communicator of ranks ",
                        absl::StrJoin(ranks(), ", "));
  }

  Factory* const factory_;
  ncclComm_t comm_ = nullptr;
  void* token_ = nullptr;  // what a barrier reduces
  ncclWindow_t window_ = nullptr;
};

absl::StatusOr<std::unique_ptr<Communicator>> Factory::Create(
    absl::string_view group, absl::Span<const int> ranks, int channel) {
  SG_RETURN_IF_ERROR(CheckGroup(group, ranks, options_.rank, options_.size));
  std::string key = absl::StrCat("nccl/", group, "/", channel, "/",
                                 absl::StrJoin(ranks, ","), "/");
  absl::StrAppend(&key, created_[key]++);
  auto communicator = std::make_unique<NcclCommunicator>(
      group, ranks, options_.rank, channel, this);
  ncclUniqueId id = {};
  if (communicator->rank() == 0) {
    SG_RETURN_IF_ERROR(
        NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
  }
  // All have come: who is missing is known here, not inside of NCCL.
  const absl::Duration timeout = this->timeout();
  SG_ASSIGN_OR_RETURN(
      const std::vector<std::string> ids,
      ExchangeThroughStore(store_, key, options_.rank, ranks,
                           absl::string_view(id.internal, sizeof(id.internal)),
                           timeout));
  if (ids[0].size() != sizeof(id.internal))
    return absl::InternalError(absl::StrCat("rank ", ranks[0], " gave ",
                                            ids[0].size(), " bytes at ", key,
                                            ", not ", sizeof(id.internal)));
  std::memcpy(id.internal, ids[0].data(), sizeof(id.internal));
  const absl::Status connected = communicator->Connect(id);
  if (connected.ok()) return communicator;
  if (!absl::IsDeadlineExceeded(connected)) return connected;
  // Those that still run come here too, at about the same time.
  const absl::Status answers =
      ExchangeThroughStore(store_, absl::StrCat(key, "/late"), options_.rank,
                           ranks, "", std::min(timeout, kAnswerWithin))
          .status();
  return absl::DeadlineExceededError(absl::StrCat(
      connected.message(), "; ",
      answers.ok() ? "all ranks still run: can they reach each other?"
                   : answers.message()));
}

absl::StatusOr<void*> Factory::AllocateWindow(int64_t bytes) {
  // Whole pages, as windows are registered.
  constexpr int64_t kPage = 4096;
  const int64_t size =
      std::max<int64_t>((bytes + kPage - 1) / kPage, 1) * kPage;
  void* window = nullptr;
  SG_RETURN_IF_ERROR(
      NcclStatus(ncclMemAlloc(&window, size),
                 absl::StrCat("ncclMemAlloc of ", bytes, " bytes"), nullptr));
  windows_.push_back({window, size});
  SG_RETURN_IF_CUDA_ERROR(cudaMemset(window, 0, size));
  SG_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
  return window;
}

void Factory::AbortAllIfBroken() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::none_of(communicators_.begin(), communicators_.end(),
                   [](const NcclCommunicator* c) { return c->broken(); }))
    return;
  ncclGroupStart();
  for (NcclCommunicator* communicator : communicators_)
    communicator->AbortNccl();
  ncclGroupEnd();
}

absl::Status Factory::Health() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (NcclCommunicator* communicator : communicators_)
    SG_RETURN_IF_ERROR(communicator->Health());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclFactory>> MakeNcclFactory(
    Store& store, const NcclOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    return absl::InvalidArgumentError(
        absl::StrCat("NcclOptions.rank is ", options.rank, " of ", options.size,
                     "; it must be in [0, size)"));
  return std::make_unique<Factory>(store, options);
}

}  // namespace shardgraph
