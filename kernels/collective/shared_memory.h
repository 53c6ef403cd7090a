// SharedMemory: ranks as processes of one host, which pull from each other's
// windows.
//
// Buffers that lie in a window of AllocateWindow on every rank are read where
// they are; others are copied through staging memory in chunks. A rank that
// dies (SIGKILL included) is named on every rank within a fraction of a second,
// a late one after the timeout; both break all communicators of the factory.
// Nothing is left behind on the machine.
#ifndef KERNELS_COLLECTIVE_SHARED_MEMORY_H_
#define KERNELS_COLLECTIVE_SHARED_MEMORY_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

struct SharedMemoryOptions {
  int rank = 0;  // world rank
  int size = 1;  // of the world
  // World ranks of this host, ascending: groups are made of these. Empty: all.
  std::vector<int> local_ranks;
  absl::Duration timeout = absl::Seconds(300);  // for each meeting of ranks
};

// Collective over the ranks of this host, which are processes of their own.
// `store` outlives the factory; the factory, its communicators.
absl::StatusOr<std::unique_ptr<CommunicatorFactory>> MakeSharedMemoryFactory(
    Store& store, const SharedMemoryOptions& options);

}  // namespace shardgraph

#endif  // KERNELS_COLLECTIVE_SHARED_MEMORY_H_
