// NCCL: collectives between GPUs, one rank per device, enqueued on lane.stream.
//
// A collective returns when it is enqueued; in a capture it becomes part of the
// graph. Sums are NCCL's: each element in FP32 (F64 and integers in their own
// dtype) but in an order of NCCL's choice. Every group and channel has a
// communicator of its own, made through the store; collectives of one process
// keep the host's order on the device, whatever their communicators, if it sets
// NCCL_LAUNCH_ORDER_IMPLICIT=1 before the first factory.
//
// Windows. A communicator of several ranks registers the factory's newest window
// as symmetric memory: its offsets are the same on all ranks, as the plan is.
// What NCCL makes of it is NCCL's to decide: kernels that reach into other GPUs
// where NVLink connects all ranks, copies without any kernel besides where
// NCCL_CTA_POLICY=2 is set. NCCL_WIN_ENABLE=0 leaves windows out.
//
// Communicators are non-blocking ones: what NCCL does behind the host's back
// (connecting, on creation and in a first collective) is waited for, up to the
// timeout. A creation that ends by it names the ranks that no longer answer.
//
// Errors. What has gone wrong on the device is seen by Health alone. Abort does
// not touch NCCL, because the host thread may be in it: it makes Health return
// the reason, so that a wait of the backend ends (CudaBackendOptions::health);
// then graphs are destroyed, and the first destructor of a communicator aborts
// NCCL's of all that the factory has made, which ends what they have on the
// device. Until then nothing frees device memory: that would wait for them.
//
// Threads: the current device of the calling thread is the rank's. Create and
// collectives on one host thread; Health and Abort on any.
#ifndef KERNELS_COLLECTIVE_NCCL_H_
#define KERNELS_COLLECTIVE_NCCL_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

struct NcclOptions {
  int rank = 0;  // world rank
  int size = 1;  // of the world
  // For ranks to find each other and to connect.
  absl::Duration timeout = absl::Seconds(300);
};

class NcclFactory : public CommunicatorFactory {
 public:
  // OK, or why a communicator of this factory is broken.
  virtual absl::Status Health() = 0;
};

// `store` outlives the factory; the factory, its communicators. Windows are
// memory of ncclMemAlloc.
absl::StatusOr<std::unique_ptr<NcclFactory>> MakeNcclFactory(
    Store& store, const NcclOptions& options);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_NCCL_H_
