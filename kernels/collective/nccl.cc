#include "kernels/collective/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
    for (void* window : windows_) ncclMemFree(window);
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
  std::vector<void*> windows_;
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
      ncclCommFinalize(comm_);
      ncclCommDestroy(comm_);
    }
    cudaFree(token_);
  }

  absl::Status Connect(const ncclUniqueId& id) {
    void* token = nullptr;
    SG_RETURN_IF_CUDA_ERROR(cudaMalloc(&token, sizeof(int32_t)));
    token_ = token;
    SG_RETURN_IF_CUDA_ERROR(cudaMemset(token_, 0, sizeof(int32_t)));
    // Lanes do not wait for the legacy stream. (Waiting for the whole device
    // could be waiting for a collective of ranks that wait for this one.)
    SG_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(cudaStreamLegacy));
    SG_RETURN_IF_ERROR(
        NcclStatus(ncclCommInitRank(&comm_, size(), id, rank()),
                   absl::StrCat("ncclCommInitRank of rank ", rank(), " of ",
                                size(), " of ", Name()),
                   nullptr));
    factory_->Add(this);
    return absl::OkStatus();
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
    return NcclStatus(result, Describe(call), comm_);
  }

  void OnAbort(const absl::Status& reason) override {}

 private:
  std::string Name() const {
    return absl::StrCat("the NCCL communicator of ranks ",
                        absl::StrJoin(ranks(), ", "));
  }

  Factory* const factory_;
  ncclComm_t comm_ = nullptr;
  void* token_ = nullptr;  // what a barrier reduces
};

absl::StatusOr<std::unique_ptr<Communicator>> Factory::Create(
    absl::string_view group, absl::Span<const int> ranks, int channel) {
  SG_RETURN_IF_ERROR(CheckGroup(group, ranks, options_.rank, options_.size));
  absl::Duration timeout;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    timeout = options_.timeout;
  }
  std::string key = absl::StrCat("nccl/", group, "/", channel, "/",
                                 absl::StrJoin(ranks, ","), "/");
  absl::StrAppend(&key, created_[key]++);
  auto communicator = std::make_unique<NcclCommunicator>(
      group, ranks, options_.rank, channel, this);
  ncclUniqueId id = {};
  if (communicator->rank() == 0) {
    SG_RETURN_IF_ERROR(
        NcclStatus(ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
    SG_RETURN_IF_ERROR(
        store_.Set(key, absl::string_view(id.internal, sizeof(id.internal))));
  }
  // All have come: inside of NCCL a rank that is missing is waited for forever.
  SG_RETURN_IF_ERROR(
      store_.Set(absl::StrCat(key, "/", communicator->rank()), "here"));
  std::vector<std::string> all;
  for (size_t r = 0; r < ranks.size(); ++r)
    all.push_back(absl::StrCat(key, "/", r));
  SG_RETURN_IF_ERROR(store_.Wait(all, timeout));
  SG_ASSIGN_OR_RETURN(const std::string text, store_.Get(key, timeout));
  if (text.size() != sizeof(id.internal))
    return absl::InternalError(absl::StrCat("the store has ", text.size(),
                                            " bytes at ", key, ", not ",
                                            sizeof(id.internal)));
  std::memcpy(id.internal, text.data(), text.size());
  SG_RETURN_IF_ERROR(communicator->Connect(id));
  return communicator;
}

absl::StatusOr<void*> Factory::AllocateWindow(int64_t bytes) {
  void* window = nullptr;
  SG_RETURN_IF_ERROR(
      NcclStatus(ncclMemAlloc(&window, std::max<int64_t>(bytes, 1)),
                 absl::StrCat("ncclMemAlloc of ", bytes, " bytes"), nullptr));
  windows_.push_back(window);
  SG_RETURN_IF_CUDA_ERROR(cudaMemset(window, 0, bytes));
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
