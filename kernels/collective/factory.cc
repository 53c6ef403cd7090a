#include "kernels/collective/factory.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/collective/gloo.h"
#include "kernels/collective/shared_memory.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Equal for processes that can share memory: one kernel, one PID namespace, one
// user.
std::string HostIdentity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof(space) - 1) < 0) {
    space[0] = 0;
  }
  return absl::StrCat(host, " ", boot, " ", space, " ", getuid());
}

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") || address == "::1" ||
         address == "localhost";
}

// An address of the first network interface that is up; empty when there is
// none.
std::string InterfaceAddress() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  std::string found;
  for (const ifaddrs* i = list; i != nullptr && found.empty();
       i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != AF_INET ||
        (i->ifa_flags & IFF_UP) == 0 || (i->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    char text[INET_ADDRSTRLEN];
    const auto* address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr);
    if (inet_ntop(AF_INET, &address->sin_addr, text, sizeof(text))) {
      found = text;
    }
  }
  freeifaddrs(list);
  return found;
}

class CpuFactory final : public CommunicatorFactory {
 public:
  CpuFactory(std::unique_ptr<CommunicatorFactory> local,
             std::unique_ptr<CommunicatorFactory> remote,
             std::vector<int> local_ranks)
      : local_(std::move(local)),
        remote_(std::move(remote)),
        local_ranks_(std::move(local_ranks)) {}

  int rank() const override { return remote_->rank(); }
  int size() const override { return remote_->size(); }

  absl::StatusOr<std::unique_ptr<Communicator>> Create(
      absl::string_view group, absl::Span<const int> ranks,
      int channel) override {
    const bool shares = local_ != nullptr && channel != kControlChannel &&
                        std::all_of(ranks.begin(), ranks.end(), [this](int r) {
                          return std::binary_search(local_ranks_.begin(),
                                                    local_ranks_.end(), r);
                        });
    return (shares ? local_ : remote_)->Create(group, ranks, channel);
  }

  absl::StatusOr<void*> AllocateWindow(int64_t bytes) override {
    return (local_ ? local_ : remote_)->AllocateWindow(bytes);
  }

  void SetTimeout(absl::Duration timeout) override {
    if (local_ != nullptr) local_->SetTimeout(timeout);
    remote_->SetTimeout(timeout);
  }

 private:
  const std::unique_ptr<CommunicatorFactory> local_;  // may be null
  const std::unique_ptr<CommunicatorFactory> remote_;
  const std::vector<int> local_ranks_;  // ascending
};

}  // namespace

absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeCpuCommunicatorFactory(
    Store& store, const CpuCommunicatorOptions& options) {
  if (options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " of a world of ", options.size));
  }
  std::vector<int> world(options.size);
  std::iota(world.begin(), world.end(), 0);
  SG_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                      ExchangeThroughStore(store, "hosts", options.rank, world,
                                           HostIdentity(), options.timeout));
  std::vector<int> local_ranks;
  for (const int r : world) {
    if (hosts[r] == hosts[options.rank]) local_ranks.push_back(r);
  }
  const bool one_host = local_ranks.size() == world.size();
  if (options.transport == CpuTransport::kSharedMemory && !one_host) {
    const int other = static_cast<int>(
        std::find_if(world.begin(), world.end(),
                     [&](int r) { return hosts[r] != hosts[options.rank]; }) -
        world.begin());
    return absl::InvalidArgumentError(absl::StrCat(
        "shared memory was asked for, but ranks ", options.rank, " and ", other,
        " do not share a host ('", hosts[options.rank], "' and '", hosts[other],
        "'); choose Gloo or automatic"));
  }
  std::unique_ptr<CommunicatorFactory> local;
  if (options.transport != CpuTransport::kGloo) {
    SG_ASSIGN_OR_RETURN(
        local, MakeSharedMemoryFactory(store, {.rank = options.rank,
                                               .size = options.size,
                                               .local_ranks = local_ranks,
                                               .timeout = options.timeout}));
  }
  std::string address = options.address;
  if (!one_host && IsLoopback(address)) {
    address = InterfaceAddress();
    if (address.empty()) {
      return absl::UnavailableError(absl::StrCat(
          "rank ", options.rank,
          " has no network interface besides the loopback one, but the world "
          "spans several hosts"));
    }
  }
  SG_ASSIGN_OR_RETURN(auto remote,
                      MakeGlooFactory(store, {.rank = options.rank,
                                              .size = options.size,
                                              .address = address,
                                              .timeout = options.timeout}));
  return std::make_unique<CpuFactory>(std::move(local), std::move(remote),
                                      std::move(local_ranks));
}

}  // namespace shardgraph
