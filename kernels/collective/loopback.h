// Loopback: ranks as threads of one process, which read each other's buffers.
//
// For tests and for several ranks on one machine without processes. A rank that
// does not come within the timeout, or whose communicator is destroyed while
// others wait for it, is named on every rank and breaks all communicators of
// the world; Abort breaks one communicator on all its ranks.
#ifndef KERNELS_COLLECTIVE_LOOPBACK_H_
#define KERNELS_COLLECTIVE_LOOPBACK_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "kernels/collective/communicator.h"

namespace shardgraph {

struct LoopbackOptions {
  absl::Duration timeout = absl::Seconds(300);  // for each meeting of ranks
};

// `size` connected factories, the one of rank r at r. Each is used by one
// thread at a time. The world lives until the last of them and of their
// communicators is gone.
std::vector<std::unique_ptr<CommunicatorFactory>> MakeLoopbackWorld(
    int size, const LoopbackOptions& options = {});

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_LOOPBACK_H_
