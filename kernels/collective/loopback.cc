#include "kernels/collective/loopback.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "kernels/collective/communicator_base.h"
#include "kernels/collective/peer_memory.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using Clock = std::chrono::steady_clock;

// Where the threads of one communicator meet. Guarded by the world's mutex.
struct Group {
  struct Member {
    CollectiveCall call;
    const char* in = nullptr;
    char* out = nullptr;
    int64_t arrivals = 0;
    bool left = false;
  };
  explicit Group(int size) : members(size) {}

  std::vector<Member> members;
  absl::Status error;  // of an Abort
  std::condition_variable changed;
};

struct World {
  explicit World(absl::Duration timeout) : timeout(timeout) {}

  // The group of a name, made by the first rank that asks for it.
  std::shared_ptr<Group> Join(const std::string& name, int size) {
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Group>& group = groups[name];
    if (group == nullptr) group = std::make_shared<Group>(size);
    return group;
  }

  std::mutex mutex;
  absl::Duration timeout;
  absl::Status lost;  // a rank is lost or late
  std::map<std::string, std::shared_ptr<Group>> groups;
};

class LoopbackCommunicator final : public PeerMemoryCommunicator {
 public:
  LoopbackCommunicator(absl::string_view name, absl::Span<const int> ranks,
                       int world_rank, int channel,
                       std::shared_ptr<World> world,
                       std::shared_ptr<Group> group)
      : PeerMemoryCommunicator(name, ranks, world_rank, channel),
        world_(std::move(world)),
        group_(std::move(group)) {}

  ~LoopbackCommunicator() override {
    std::lock_guard<std::mutex> lock(world_->mutex);
    group_->members[rank()].left = true;
    group_->changed.notify_all();
  }

 protected:
  absl::Status Meet(const CollectiveCall& call, const void* in, void* out,
                    std::vector<Peer>& peers) override {
    std::unique_lock<std::mutex> lock(world_->mutex);
    Group::Member& self = group_->members[rank()];
    self.call = call;
    self.in = static_cast<const char*>(in);
    self.out = static_cast<char*>(out);
    SG_RETURN_IF_ERROR(Arrive(lock, call));
    for (int r = 0; r < size(); ++r) {
      const Group::Member& member = group_->members[r];
      peers[r] = {member.call, member.in, member.out};
    }
    return absl::OkStatus();
  }

  absl::Status Sync(const CollectiveCall& call) override {
    std::unique_lock<std::mutex> lock(world_->mutex);
    return Arrive(lock, call);
  }

  char* staging(int rank, int half) override { return nullptr; }
  int64_t staging_bytes() const override { return 0; }

  void OnAbort(const absl::Status& reason) override {
    std::lock_guard<std::mutex> lock(world_->mutex);
    if (group_->error.ok()) group_->error = reason;
    group_->changed.notify_all();
  }

 private:
  absl::Status Arrive(std::unique_lock<std::mutex>& lock,
                      const CollectiveCall& call) {
    const int64_t arrival = ++group_->members[rank()].arrivals;
    group_->changed.notify_all();
    // A year is forever, and does not overflow.
    const Clock::time_point deadline =
        Clock::now() + absl::ToChronoNanoseconds(
                           std::min(world_->timeout, absl::Hours(24 * 365)));
    bool late = false;
    for (;;) {
      bool missing = false;
      bool left = false;
      for (const Group::Member& member : group_->members) {
        if (member.arrivals >= arrival) continue;
        missing = true;
        left = left || member.left;
      }
      if (!missing) return absl::OkStatus();
      SG_RETURN_IF_ERROR(group_->error);
      SG_RETURN_IF_ERROR(world_->lost);
      if (left || late) return Lose(call, arrival, left);
      late =
          group_->changed.wait_until(lock, deadline) == std::cv_status::timeout;
    }
  }

  // Names the ranks that have left or, when none has, those that are late.
  absl::Status Lose(const CollectiveCall& call, int64_t arrival, bool left) {
    std::vector<int> missing;
    for (int r = 0; r < size(); ++r) {
      const Group::Member& member = group_->members[r];
      if (member.arrivals < arrival && (member.left || !left)) {
        missing.push_back(ranks()[r]);
      }
    }
    const std::string who =
        absl::StrCat(Describe(call), ": rank ", absl::StrJoin(missing, ", "));
    world_->lost =
        left ? absl::UnavailableError(absl::StrCat(who, " has left the world"))
             : absl::DeadlineExceededError(
                   absl::StrCat(who, " did not come within ",
                                absl::FormatDuration(world_->timeout)));
    for (auto& [name, group] : world_->groups) group->changed.notify_all();
    return world_->lost;
  }

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Group> group_;
};

class LoopbackFactory final : public CommunicatorFactory {
 public:
  LoopbackFactory(int rank, int size, std::shared_ptr<World> world)
      : rank_(rank), size_(size), world_(std::move(world)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    SG_RETURN_IF_ERROR(CheckGroup(group, ranks, rank_, size_));
    std::string name =
        absl::StrCat(group, "/", channel, "/", absl::StrJoin(ranks, ","), "/");
    absl::StrAppend(&name, created_[name]++);
    return std::make_unique<LoopbackCommunicator>(
        group, ranks, rank_, channel, world_, world_->Join(name, ranks.size()));
  }

  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override {
    return nullptr;
  }

  void SetTimeout(absl::Duration timeout) override {
    std::lock_guard<std::mutex> lock(world_->mutex);
    world_->timeout = timeout;
  }

 private:
  const int rank_;
  const int size_;
  const std::shared_ptr<World> world_;
  // How many of each name this rank has made: the n-th meets the others' n-th.
  std::map<std::string, int> created_;
};

}  // namespace

std::vector<std::unique_ptr<CommunicatorFactory>> MakeLoopbackWorld(
    int size, const LoopbackOptions& options) {
  SG_CHECK_GE(size, 1);
  auto world = std::make_shared<World>(options.timeout);
  std::vector<std::unique_ptr<CommunicatorFactory>> factories;
  for (int rank = 0; rank < size; ++rank) {
    factories.push_back(std::make_unique<LoopbackFactory>(rank, size, world));
  }
  return factories;
}

}  // namespace shardgraph
