// Chooses how the ranks of a job exchange data on CPUs: shared memory where all
// ranks of a group are processes of one host, Gloo where they are not.
#ifndef KERNELS_COLLECTIVE_FACTORY_H_
#define KERNELS_COLLECTIVE_FACTORY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

// The channel of communicators for the control plane (comparing plan hashes,
// handing out ids): Gloo in every run, so that it never waits for a GPU or a
// data lane.
inline constexpr int kControlChannel = -1;

enum class CpuTransport { kAuto, kSharedMemory, kGloo };

struct CpuCommunicatorOptions {
  int rank = 0;  // world rank
  int size = 1;  // of the world
  CpuTransport transport = CpuTransport::kAuto;
  // Address of this host under which the others reach it: TcpStore has
  // LocalAddress() for it. Replaced by that of a network interface when it is a
  // loopback address and the world spans several hosts.
  std::string address = "127.0.0.1";
  absl::Duration timeout = absl::Seconds(300);  // for each meeting of ranks
};

// Collective over the world. `store` outlives the factory and its
// communicators; keys of an earlier attempt of the same job must not be in it
// (PrefixStore). Windows are shared by the ranks of a host.
absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeCpuCommunicatorFactory(
    Store& store, const CpuCommunicatorOptions& options);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_FACTORY_H_
