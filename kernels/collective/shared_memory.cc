#include "kernels/collective/shared_memory.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/collective/communicator_base.h"
#include "kernels/collective/peer_memory.h"
#include "kernels/collective/shared_segment.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kStagingBytes = 512 * 1024;  // one half of one rank
// How often a waiting rank looks whether its peers still live.
constexpr absl::Duration kLookAround = absl::Milliseconds(50);
// Polls before going to sleep; a few microseconds.
constexpr int kSpins = 200;

int64_t RoundUp(int64_t n) { return (n + kPage - 1) / kPage * kPage; }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A buffer as seen from every process.
struct WindowAddress {
  int64_t window = -1;  // -1: in none
  int64_t offset = 0;
};

// What a rank of a communicator shows the others.
struct alignas(128) Member {
  std::atomic<uint32_t> arrivals;  // futex; wraps
  std::atomic<uint32_t> sleepers;  // who may wait for it
  CollectiveCall call;
  WindowAddress in;
  WindowAddress out;
};

// What all ranks of a host share.
class HostWorld {
 public:
  HostWorld(const SharedMemoryOptions& options, std::vector<int> local_ranks)
      : rank(options.rank), local_ranks(std::move(local_ranks)) {
    SetTimeout(options.timeout);
  }

  absl::Status Connect(Store& store) {
    if (rank == local_ranks[0]) {
      SG_ASSIGN_OR_RETURN(segment_, SharedSegment::Create("shardgraph_world",
                                                          sizeof(ErrorCell)));
    }
    // Any segment tells the process id too.
    SG_ASSIGN_OR_RETURN(own_, SharedSegment::Create("shardgraph_rank", 1));
    SG_ASSIGN_OR_RETURN(
        const std::vector<std::string> addresses,
        ExchangeThroughStore(store, "host", rank, local_ranks,
                             (segment_ ? segment_ : own_)->address(),
                             timeout()));
    for (const std::string& address : addresses) {
      int pid = 0;
      if (!absl::SimpleAtoi(address.substr(0, address.find(' ')), &pid)) {
        return absl::InternalError(
            absl::StrCat("shared memory: bad address '", address, "'"));
      }
      watches_.push_back(std::make_unique<ProcessWatch>(pid));
    }
    if (segment_ == nullptr) {
      SG_ASSIGN_OR_RETURN(segment_, SharedSegment::Open(addresses[0]));
    }
    return AwaitOpened(store, "host");
  }

  // The first rank that was lost, on any communicator.
  ErrorCell& lost() const {
    return *reinterpret_cast<ErrorCell*>(segment_->data());
  }

  int LocalIndex(int world_rank) const {
    const auto it =
        std::find(local_ranks.begin(), local_ranks.end(), world_rank);
    return it == local_ranks.end() ? -1
                                   : static_cast<int>(it - local_ranks.begin());
  }
  const ProcessWatch& watch(int world_rank) const {
    return *watches_[LocalIndex(world_rank)];
  }

  absl::StatusOr<void*> AddWindow(Store& store, int64_t bytes) {
    SG_ASSIGN_OR_RETURN(auto mine,
                        SharedSegment::Create("shardgraph_window", bytes));
    SG_ASSIGN_OR_RETURN(
        const std::vector<std::string> addresses,
        ExchangeThroughStore(store, absl::StrCat("window/", windows_.size()),
                             rank, local_ranks, mine->address(), timeout()));
    Window window;
    for (size_t i = 0; i < addresses.size(); ++i) {
      if (local_ranks[i] == rank) {
        window.push_back(std::move(mine));
        continue;
      }
      SG_ASSIGN_OR_RETURN(auto segment, SharedSegment::Open(addresses[i]));
      if (segment->bytes() != bytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("window of ", bytes, " bytes on rank ", rank, ", of ",
                         segment->bytes(), " on rank ", local_ranks[i],
                         ": the size must be the same everywhere"));
      }
      window.push_back(std::move(segment));
    }
    SG_RETURN_IF_ERROR(
        AwaitOpened(store, absl::StrCat("window/", windows_.size())));
    char* data = window[LocalIndex(rank)]->data();
    std::lock_guard<std::mutex> lock(mutex_);
    windows_.push_back(std::move(window));
    return data;
  }

  WindowAddress Find(const void* data, int64_t bytes) const {
    const char* begin = static_cast<const char*>(data);
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t w = 0; w < windows_.size(); ++w) {
      const SharedSegment& mine = *windows_[w][LocalIndex(rank)];
      if (begin >= mine.data() && begin + bytes <= mine.data() + mine.bytes()) {
        return {static_cast<int64_t>(w), begin - mine.data()};
      }
    }
    return {};
  }

  char* At(int world_rank, const WindowAddress& address) const {
    if (address.window < 0) return nullptr;
    std::lock_guard<std::mutex> lock(mutex_);
    return windows_[address.window][LocalIndex(world_rank)]->data() +
           address.offset;
  }

  absl::Duration timeout() const {
    return absl::Nanoseconds(timeout_.load(std::memory_order_relaxed));
  }
  void SetTimeout(absl::Duration timeout) {
    timeout_.store(absl::ToInt64Nanoseconds(timeout),
                   std::memory_order_relaxed);
  }

  const int rank;
  const std::vector<int> local_ranks;

 private:
  using Window = std::vector<std::unique_ptr<SharedSegment>>;  // per local rank

  // Until all ranks have mapped what is named: its makers may end only then.
  absl::Status AwaitOpened(Store& store, absl::string_view what) {
    return ExchangeThroughStore(store, absl::StrCat(what, "/opened"), rank,
                                local_ranks, "", timeout())
        .status();
  }

  std::atomic<int64_t> timeout_;
  std::unique_ptr<SharedSegment> segment_;
  std::unique_ptr<SharedSegment> own_;
  std::vector<std::unique_ptr<ProcessWatch>> watches_;
  mutable std::mutex mutex_;
  std::vector<Window> windows_;  // guarded by mutex_
};

int64_t HeaderBytes(int size) {
  return RoundUp(sizeof(ErrorCell) + alignof(Member)) +
         RoundUp(size * static_cast<int64_t>(sizeof(Member)));
}

class SharedMemoryCommunicator final : public PeerMemoryCommunicator {
 public:
  SharedMemoryCommunicator(absl::string_view name, absl::Span<const int> ranks,
                           int channel, std::shared_ptr<HostWorld> world,
                           std::unique_ptr<SharedSegment> segment)
      : PeerMemoryCommunicator(name, ranks, world->rank, channel),
        world_(std::move(world)),
        segment_(std::move(segment)),
        error_(reinterpret_cast<ErrorCell*>(segment_->data())),
        members_(reinterpret_cast<Member*>(
            segment_->data() + RoundUp(sizeof(ErrorCell) + alignof(Member)))) {}

  // Until all ranks have mapped the segment: its maker may end only then.
  absl::Status AwaitAll() {
    return Sync({.collective = Collective::kBarrier, .sequence = 0});
  }

  static int64_t SegmentBytes(int size) {
    return HeaderBytes(size) + size * 2 * kStagingBytes;
  }

 protected:
  absl::Status Meet(const CollectiveCall& call, const void* in, void* out,
                    std::vector<Peer>& peers) override {
    Member& self = members_[rank()];
    self.call = call;
    self.in = world_->Find(in, call.in_bytes(size()));
    self.out = world_->Find(out, call.out_bytes(size()));
    SG_RETURN_IF_ERROR(Sync(call));
    for (int r = 0; r < size(); ++r) {
      const Member& member = members_[r];
      peers[r].call = member.call;
      peers[r].in = world_->At(ranks()[r], member.in);
      peers[r].out = world_->At(ranks()[r], member.out);
    }
    return absl::OkStatus();
  }

  absl::Status Sync(const CollectiveCall& call) override {
    Member& self = members_[rank()];
    const uint32_t arrival = self.arrivals.fetch_add(1) + 1;
    if (self.sleepers.load() > 0) FutexWake(self.arrivals);
    const absl::Time deadline = absl::Now() + world_->timeout();
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      for (int spin = 0; spin < kSpins && !HasArrived(r, arrival); ++spin) {
        Pause();
      }
      if (HasArrived(r, arrival)) continue;
      members_[r].sleepers.fetch_add(1);
      const absl::Status status = WaitFor(r, arrival, deadline, call);
      members_[r].sleepers.fetch_sub(1);
      SG_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  char* staging(int rank, int half) override {
    return segment_->data() + HeaderBytes(size()) +
           (rank * 2 + half) * kStagingBytes;
  }
  int64_t staging_bytes() const override { return kStagingBytes; }

  void OnAbort(const absl::Status& reason) override {
    error_->SetOrGet(reason).IgnoreError();
    for (int r = 0; r < size(); ++r) FutexWake(members_[r].arrivals);
  }

 private:
  bool HasArrived(int r, uint32_t arrival) const {
    return static_cast<int32_t>(members_[r].arrivals.load() - arrival) >= 0;
  }

  absl::Status WaitFor(int r, uint32_t arrival, absl::Time deadline,
                       const CollectiveCall& call) {
    for (;;) {
      const uint32_t seen = members_[r].arrivals.load();
      if (static_cast<int32_t>(seen - arrival) >= 0) return absl::OkStatus();
      const absl::Duration left = deadline - absl::Now();
      FutexWait(members_[r].arrivals, seen, std::min(left, kLookAround));
      if (HasArrived(r, arrival)) return absl::OkStatus();
      SG_RETURN_IF_ERROR(LookAround(arrival, left, call));
    }
  }

  // OK as long as there is hope that the others come.
  absl::Status LookAround(uint32_t arrival, absl::Duration left,
                          const CollectiveCall& call) {
    // An error that is already known goes before what this rank would find.
    SG_RETURN_IF_ERROR(error_->Get());
    SG_RETURN_IF_ERROR(world_->lost().Get());
    std::vector<int> ended, missing;
    for (int peer = 0; peer < size(); ++peer) {
      // In this order: whoever ended after its arrival is not missed.
      const bool has_ended = world_->watch(ranks()[peer]).HasEnded();
      if (HasArrived(peer, arrival)) continue;
      if (has_ended) ended.push_back(ranks()[peer]);
      if (left <= absl::ZeroDuration()) missing.push_back(ranks()[peer]);
    }
    if (!ended.empty()) {
      return Lose(absl::UnavailableError(absl::StrCat(
          Describe(call), ": rank ", absl::StrJoin(ended, ", "),
          " has died (process ", world_->watch(ended[0]).pid(), ")")));
    }
    if (!missing.empty()) {
      return Lose(absl::DeadlineExceededError(absl::StrCat(
          Describe(call), ": rank ", absl::StrJoin(missing, ", "),
          " did not come within ", absl::FormatDuration(world_->timeout()))));
    }
    return absl::OkStatus();
  }

  // All ranks report what the first one found: who dies because of it is not
  // the cause.
  absl::Status Lose(const absl::Status& error) {
    const absl::Status first = world_->lost().SetOrGet(error);
    for (int r = 0; r < size(); ++r) FutexWake(members_[r].arrivals);
    return first;
  }

  const std::shared_ptr<HostWorld> world_;
  const std::unique_ptr<SharedSegment> segment_;
  ErrorCell* const error_;  // of an Abort
  Member* const members_;
};

class SharedMemoryFactory final : public CommunicatorFactory {
 public:
  SharedMemoryFactory(Store& store, int size, std::shared_ptr<HostWorld> world)
      : store_(store, absl::StrCat("shm/", world->local_ranks[0])),
        size_(size),
        world_(std::move(world)) {}

  absl::Status Connect() { return world_->Connect(store_); }

  int rank() const override { return world_->rank; }
  int size() const override { return size_; }

  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    SG_RETURN_IF_ERROR(CheckGroup(group, ranks, rank(), size_));
    for (const int r : ranks) {
      if (world_->LocalIndex(r) < 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("group '", group, "': rank ", r,
                         " is on another host, out of reach of shared memory"));
      }
    }
    std::string key =
        absl::StrCat(group, "/", channel, "/", absl::StrJoin(ranks, ","), "/");
    absl::StrAppend(&key, created_[key]++);
    std::unique_ptr<SharedSegment> segment;
    const int size = static_cast<int>(ranks.size());
    if (rank() == ranks[0]) {
      SG_ASSIGN_OR_RETURN(
          segment,
          SharedSegment::Create("shardgraph_group",
                                SharedMemoryCommunicator::SegmentBytes(size)));
      SG_RETURN_IF_ERROR(store_.Set(key, segment->address()));
    } else {
      SG_ASSIGN_OR_RETURN(const std::string address,
                          store_.Get(key, world_->timeout()));
      SG_ASSIGN_OR_RETURN(segment, SharedSegment::Open(address));
    }
    auto communicator = std::make_unique<SharedMemoryCommunicator>(
        group, ranks, channel, world_, std::move(segment));
    SG_RETURN_IF_ERROR(communicator->AwaitAll());
    return communicator;
  }

  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override {
    if (bytes < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("window of ", bytes, " bytes"));
    }
    return world_->AddWindow(store_, bytes);
  }

  void SetTimeout(absl::Duration timeout) override {
    world_->SetTimeout(timeout);
  }

 private:
  PrefixStore store_;
  const int size_;
  const std::shared_ptr<HostWorld> world_;
  // How many of each key this rank has made: the n-th meets the others' n-th.
  std::map<std::string, int> created_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeSharedMemoryFactory(
    Store& store, const SharedMemoryOptions& options) {
  std::vector<int> local_ranks = options.local_ranks;
  if (local_ranks.empty()) {
    local_ranks.resize(std::max(options.size, 0));
    std::iota(local_ranks.begin(), local_ranks.end(), 0);
  }
  SG_RETURN_IF_ERROR(
      CheckGroup("host", local_ranks, options.rank, options.size));
  auto factory = std::make_unique<SharedMemoryFactory>(
      store, options.size,
      std::make_shared<HostWorld>(options, std::move(local_ranks)));
  SG_RETURN_IF_ERROR(factory->Connect());
  return factory;
}

}  // namespace shardgraph
