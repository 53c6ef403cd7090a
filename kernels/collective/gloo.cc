#include "kernels/collective/gloo.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/store.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "kernels/collective/communicator_base.h"
#include "kernels/collective/reduction.h"
#include "kernels/collective/report_board.h"
#include "kernels/status_macros.h"

#ifdef SG_TSAN
// libgloo is not instrumented: it counts references to its buffers with atomic
// operations that ThreadSanitizer does not see, and frees them on any thread.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:gloo::transport::tcp::";
}
#endif

namespace shardgraph {
namespace {

using ::gloo::transport::UnboundBuffer;

// Bytes received from one peer before they are summed.
constexpr int64_t kChunkBytes = int64_t{4} << 20;
// Results up to this size are summed by every rank for itself: one round.
constexpr int64_t kSmallBytes = 16 * 1024;
// How long a rank whose connection broke looks for the report of another one
// that knows why.
constexpr absl::Duration kGrace = absl::Milliseconds(500);

// Gloo's view of our store; throws, as Gloo expects.
class StoreAdapter final : public ::gloo::rendezvous::Store {
 public:
  StoreAdapter(shardgraph::Store& store, absl::Duration timeout)
      : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(store_.Set(key, absl::string_view(data.data(), data.size())));
  }
  std::vector<char> get(const std::string& key) override {
    const absl::StatusOr<std::string> value = store_.Get(key, timeout_);
    Check(value.status());
    return std::vector<char>(value->begin(), value->end());
  }
  void wait(const std::vector<std::string>& keys) override {
    Check(store_.Wait(keys, timeout_));
  }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    Check(store_.Wait(keys, absl::FromChrono(timeout)));
  }

 private:
  static void Check(const absl::Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }

  shardgraph::Store& store_;
  const absl::Duration timeout_;
};

// What the communicators of a factory share; outlives it.
struct GlooWorld {
  GlooWorld(Store& store, const GlooOptions& options)
      : store(store, "gloo"),
        rank(options.rank),
        size(options.size),
        board(this->store) {
    SetTimeout(options.timeout);
  }

  absl::Duration timeout() const {
    return absl::Nanoseconds(nanoseconds.load());
  }
  void SetTimeout(absl::Duration timeout) {
    // A year is forever, and Gloo can count it.
    nanoseconds =
        absl::ToInt64Nanoseconds(std::min(timeout, absl::Hours(24 * 365)));
  }

  PrefixStore store;
  const int rank;
  const int size;
  std::atomic<int64_t> nanoseconds = 0;
  std::shared_ptr<::gloo::transport::Device> device;
  ReportBoard board;
};

class GlooCommunicator final : public CommunicatorBase {
 public:
  GlooCommunicator(absl::string_view group, absl::Span<const int> ranks,
                   int channel, std::string key,
                   std::shared_ptr<GlooWorld> world)
      : CommunicatorBase(group, ranks, world->rank, channel),
        key_(std::move(key)),
        world_(std::move(world)),
        context_(std::make_shared<::gloo::rendezvous::Context>(rank(), size())),
        sends_(size()),
        receives_(size()),
        in_(size()),
        out_(size()),
        sources_(size()) {}

  ~GlooCommunicator() override {
    world_->board.Unsubscribe(key_);
    Close();
  }

  absl::Status ConnectAll() {
    world_->board.Subscribe(key_,
                            [this](const absl::Status& error) { Stop(error); });
    // Names who does not come, which Gloo does not.
    SG_RETURN_IF_ERROR(ExchangeThroughStore(world_->store, key_ + "/here",
                                            world_->rank, ranks(), "",
                                            world_->timeout())
                           .status());
    try {
      PrefixStore store(world_->store, key_);
      StoreAdapter adapter(store, world_->timeout());
      context_->setTimeout(absl::ToChronoMilliseconds(world_->timeout()));
      context_->connectFullMesh(adapter, world_->device);
    } catch (const std::exception& e) {
      return absl::UnavailableError(absl::StrCat(
          "rank ", world_->rank, " cannot connect to the ranks of '", key_,
          "': ", e.what()));
    }
    // Nobody closes connections, and be it by going away, that others still
    // make.
    return ExchangeThroughStore(world_->store, key_ + "/connected",
                                world_->rank, ranks(), "", world_->timeout())
        .status();
  }

 protected:
  absl::Status Run(const CollectiveCall& call, const void* in, void* out,
                   Lane& lane) override {
    const char* from = static_cast<const char*>(in);
    char* to = static_cast<char*>(out);
    const int64_t piece = call.count * SizeOf(call.element());
    ClearPieces();
    switch (call.collective) {
      case Collective::kAllGather:
        for (int r = 0; r < size(); ++r) {
          sends_[r] = {const_cast<char*>(from), piece};
          receives_[r] = {to + r * piece, piece};
        }
        CopyBytes(from, to + rank() * piece, piece, lane);
        return Exchange(call);
      case Collective::kAllToAll:
        for (int r = 0; r < size(); ++r) {
          sends_[r] = {const_cast<char*>(from) + r * piece, piece};
          receives_[r] = {to + r * piece, piece};
        }
        CopyBytes(from + rank() * piece, to + rank() * piece, piece, lane);
        return Exchange(call);
      case Collective::kReduceScatter:
        return ReduceTo(
            call, [&](int r) { return from + r * piece; }, to, piece, lane);
      case Collective::kAllReduce:
        return AllReducePieces(call, to, lane);
      case Collective::kBroadcast:
        for (int r = 0; r < size(); ++r) {
          if (rank() == call.root) sends_[r] = {to, piece};
        }
        if (rank() != call.root) receives_[call.root] = {to, piece};
        return Exchange(call);
      case Collective::kBarrier:
        scratch_.resize(std::max<size_t>(scratch_.size(), size() + 1));
        for (int r = 0; r < size(); ++r) {
          sends_[r] = {scratch_.data() + size(), 1};
          receives_[r] = {scratch_.data() + r, 1};
        }
        return Exchange(call);
    }
    return absl::OkStatus();
  }

  void OnAbort(const absl::Status& reason) override {
    Stop(reason);
    world_->board.Report(key_, key_, reason).IgnoreError();
  }

 private:
  struct Piece {
    char* data = nullptr;
    int64_t bytes = 0;
  };

  // Ends what goes on and all that follows; from any thread.
  void Stop(const absl::Status& error) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_.ok()) stopped_ = error;
    for (const auto* buffers : {&in_, &out_}) {
      for (const auto& buffer : *buffers) {
        if (buffer == nullptr) continue;
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
  }

  void Close() {
    try {
      context_->closeConnections();
    } catch (const std::exception&) {
      // Closed already.
    }
  }

  void ClearPieces() {
    std::fill(sends_.begin(), sends_.end(), Piece());
    std::fill(receives_.begin(), receives_.end(), Piece());
  }

  // Receives piece rank() from all, in chunks, and sums it into `out`, which
  // may be this rank's own piece. `piece_of(r)` is what goes to rank r, of
  // `bytes` each.
  template <typename PieceOf>
  absl::Status ReduceTo(const CollectiveCall& call, PieceOf piece_of, char* out,
                        int64_t bytes, Lane& lane) {
    const int64_t chunk = std::min(bytes, kChunkBytes);
    scratch_.resize(std::max<size_t>(scratch_.size(), chunk * size()));
    for (int64_t begin = 0; begin < bytes; begin += chunk) {
      const int64_t n = std::min(chunk, bytes - begin);
      for (int r = 0; r < size(); ++r) {
        sends_[r] = {const_cast<char*>(piece_of(r)) + begin, n};
        receives_[r] = {scratch_.data() + r * chunk, n};
        sources_[r] = receives_[r].data;
      }
      sources_[rank()] = sends_[rank()].data;
      SG_RETURN_IF_ERROR(Exchange(call));
      void* sum = out + begin;
      ReduceInRankOrder(sources_, absl::MakeConstSpan(&sum, 1),
                        n / SizeOf(call.element()), call.element(),
                        call.reduce_op(), lane);
    }
    return absl::OkStatus();
  }

  absl::Status AllReducePieces(const CollectiveCall& call, char* data,
                               Lane& lane) {
    const int64_t element = SizeOf(call.element());
    const int64_t bytes = call.count * element;
    if (bytes <= kSmallBytes) {
      return ReduceTo(
          call, [&](int) { return data; }, data, bytes, lane);
    }
    // Equal parts, so that all ranks go through the same chunks; the rest is
    // small. Each rank sums its part and sends the result to all.
    const int64_t part = call.count / size() * element;
    SG_RETURN_IF_ERROR(ReduceTo(
        call, [&](int r) { return data + r * part; }, data + rank() * part,
        part, lane));
    ClearPieces();
    for (int r = 0; r < size(); ++r) {
      sends_[r] = {data + rank() * part, part};
      receives_[r] = {data + r * part, part};
    }
    SG_RETURN_IF_ERROR(Exchange(call));
    char* rest = data + size() * part;
    return ReduceTo(
        call, [&](int) { return rest; }, rest, bytes - size() * part, lane);
  }

  // Sends `sends_` to and receives `receives_` from the others; empty pieces,
  // which are empty on both sides, are left out.
  absl::Status Exchange(const CollectiveCall& call) {
    // Calls that differ do not match, which shows as a rank that is late.
    const uint32_t kind = static_cast<uint32_t>(call.collective) * 256 +
                          static_cast<uint32_t>(call.dtype) * 16 +
                          static_cast<uint32_t>(call.op);
    const uint64_t slot =
        (message_++ << 32) |
        (kind * 0x9e3779b1u ^ static_cast<uint32_t>(call.count));
    const absl::Time deadline = absl::Now() + world_->timeout();
    const auto left = [&] {
      return std::max(absl::ToChronoMilliseconds(deadline - absl::Now()),
                      std::chrono::milliseconds(1));
    };
    int peer = rank();
    absl::Status status;
    try {
      bool goes_on = Post(slot, &peer);
      for (int i = 1; goes_on && i < size(); ++i) {
        peer = (rank() + i) % size();
        if (out_[peer] != nullptr) goes_on = out_[peer]->waitRecv(left());
      }
      for (int i = 1; goes_on && i < size(); ++i) {
        peer = (rank() + i) % size();
        if (in_[peer] != nullptr) goes_on = in_[peer]->waitSend(left());
      }
      if (!goes_on) status = absl::AbortedError("stopped");
    } catch (const std::exception& e) {
      status = Explain(call, peer, e.what());
    }
    // No peer may write to the buffers of a call that has ended.
    if (!status.ok()) Close();
    std::lock_guard<std::mutex> lock(mutex_);
    for (int r = 0; r < size(); ++r) {
      in_[r] = nullptr;
      out_[r] = nullptr;
    }
    return status.ok() || stopped_.ok() ? status : stopped_;
  }

  // Starts all transfers; false when stopped.
  bool Post(uint64_t slot, int* peer) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopped_.ok()) return false;
    for (int i = 1; i < size(); ++i) {
      *peer = (rank() + i) % size();
      const Piece& receive = receives_[*peer];
      if (receive.bytes == 0) continue;
      out_[*peer] = context_->createUnboundBuffer(receive.data, receive.bytes);
      out_[*peer]->recv(*peer, slot);
    }
    for (int i = 1; i < size(); ++i) {
      *peer = (rank() + i) % size();
      const Piece& send = sends_[*peer];
      if (send.bytes == 0) continue;
      in_[*peer] = context_->createUnboundBuffer(send.data, send.bytes);
      in_[*peer]->send(*peer, slot);
    }
    return true;
  }

  // Why the transfer with `peer` failed: what another rank has reported, else
  // what this one finds.
  absl::Status Explain(const CollectiveCall& call, int peer,
                       const std::string& what) {
    absl::Status found;
    if (absl::StrContains(what, "Timed out")) {
      std::vector<int> missing;
      for (int r = 0; r < size(); ++r) {
        if (r == peer || !HasCome(r)) missing.push_back(ranks()[r]);
      }
      found = absl::DeadlineExceededError(absl::StrCat(
          Describe(call), ": rank ", absl::StrJoin(missing, ", "),
          " did not come within ", absl::FormatDuration(world_->timeout())));
    } else {
      const absl::Status reported = world_->board.Find(key_, kGrace);
      if (!reported.ok()) return reported;
      found = absl::UnavailableError(absl::StrCat(
          Describe(call), ": rank ", ranks()[peer], " is lost: ", what));
    }
    // To all groups: who ends because of it is not the cause.
    return world_->board.Report(ReportBoard::kEverybody, key_, found);
  }

  // Whether everything from a peer is here. Only after a timeout, which has
  // ended all transfers.
  bool HasCome(int peer) {
    if (out_[peer] == nullptr) return true;
    try {
      return out_[peer]->waitRecv(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      return false;
    }
  }

  const std::string key_;
  const std::shared_ptr<GlooWorld> world_;
  const std::shared_ptr<::gloo::rendezvous::Context> context_;
  uint64_t message_ = 0;
  std::vector<Piece> sends_;
  std::vector<Piece> receives_;
  std::vector<char> scratch_;
  std::mutex mutex_;
  absl::Status stopped_;  // why, guarded by mutex_
  // Transfers that are under way, per peer; changed under mutex_.
  std::vector<std::unique_ptr<UnboundBuffer>> in_;
  std::vector<std::unique_ptr<UnboundBuffer>> out_;
  std::vector<const void*> sources_;
};

class GlooFactory final : public CommunicatorFactory {
 public:
  explicit GlooFactory(std::shared_ptr<GlooWorld> world)
      : world_(std::move(world)) {}

  int rank() const override { return world_->rank; }
  int size() const override { return world_->size; }

  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    SG_RETURN_IF_ERROR(CheckGroup(group, ranks, rank(), size()));
    std::string key =
        absl::StrCat(group, "/", channel, "/", absl::StrJoin(ranks, ","), "/");
    absl::StrAppend(&key, created_[key]++);
    auto communicator = std::make_unique<GlooCommunicator>(
        group, ranks, channel, std::move(key), world_);
    SG_RETURN_IF_ERROR(communicator->ConnectAll());
    return communicator;
  }

  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override {
    return nullptr;
  }

  void SetTimeout(absl::Duration timeout) override {
    world_->SetTimeout(timeout);
  }

 private:
  const std::shared_ptr<GlooWorld> world_;
  // How many of each key this rank has made: the n-th meets the others' n-th.
  std::map<std::string, int> created_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeGlooFactory(
    Store& store, const GlooOptions& options) {
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of a world of ", options.size));
  }
  struct sigaction action {};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      action.sa_handler == SIG_DFL) {
    signal(SIGPIPE, SIG_IGN);
  }
  auto world = std::make_shared<GlooWorld>(store, options);
  try {
    ::gloo::transport::tcp::attr attributes;
    attributes.hostname = options.address;
    world->device = ::gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("rank ", options.rank, " cannot use its address '",
                     options.address, "' for Gloo: ", e.what()));
  }
  return std::make_unique<GlooFactory>(std::move(world));
}

}  // namespace shardgraph
