// Rendezvous: the store where the ranks of a job meet, as a LaunchEnvironment
// describes it; served by this rank where that is its part.
//
// Thread safe after Join. Destroying it on the rank that serves waits a while
// for the others to leave.
#ifndef FSDP_LAUNCH_RENDEZVOUS_H_
#define FSDP_LAUNCH_RENDEZVOUS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/launch/environment.h"
#include "kernels/collective/store.h"
#include "kernels/collective/store_server.h"
#include "kernels/collective/tcp_store.h"

namespace shardgraph {

class Rendezvous {
 public:
  // Serves and connects; `timeout` is how long the server may take to appear. A
  // single rank that has nobody to meet gets a store of its own.
  static absl::StatusOr<std::unique_ptr<Rendezvous>> Join(
      const LaunchEnvironment& environment, absl::Duration timeout);
  ~Rendezvous();

  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Keys are those of this job and this restart of it only.
  Store& store() { return *prefixed_; }
  // The address of this host on the way to the server.
  const std::string& address() const { return address_; }

 private:
  Rendezvous() = default;

  std::unique_ptr<StoreServer> server_;  // where this rank serves
  std::unique_ptr<TcpStore> client_;     // where there is somebody to meet
  std::unique_ptr<InProcessStore> own_;  // where there is not
  std::unique_ptr<PrefixStore> prefixed_;
  std::string address_ = "127.0.0.1";
};

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_RENDEZVOUS_H_
