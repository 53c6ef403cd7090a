// HostLink: how the host and lanes that run beside it (a GPU's streams) reach
// each other while neither waits. A backend whose kernels only enqueue is one
// besides (HostLinkOf); where lanes are host threads there is no need for it.
//
// Threads: the host thread of the backend.
#ifndef KERNELS_HOST_LINK_H_
#define KERNELS_HOST_LINK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/record_ring.h"

namespace shardgraph {

class HostLink {
 public:
  virtual ~HostLink() = default;

  // Memory of the host that lanes reach too: zero filled, 8-byte aligned, freed
  // with the backend. `where`, `ring` and `host` below lie in it.
  virtual absl::StatusOr<void*> AllocateShared(int64_t bytes) = 0;

  // These enqueue on a lane, in a capture as anywhere.
  // *where = value.
  virtual void Mark(int lane, int64_t* where, int64_t value) = 0;
  // Appends the ring->words x 8 bytes at `device`.
  virtual void Append(int lane, RecordRing* ring, const void* device) = 0;
  // Copies what stands at `host` when the lane comes to it.
  virtual void Fetch(int lane, void* device, const void* host,
                     int64_t bytes) = 0;

  // The first error so far. Lets the device go on, but waits for nothing.
  virtual absl::Status Poll() = 0;

  // A range of the host thread in a profiler's picture.
  virtual void BeginRange(const char* name) = 0;
  virtual void EndRange() = 0;
};

// Of a backend; null where there is none.
template <typename Backend>
HostLink* HostLinkOf(Backend* backend) {
  return dynamic_cast<HostLink*>(backend);
}

}  // namespace shardgraph

#endif  // KERNELS_HOST_LINK_H_
