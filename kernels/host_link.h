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

// Where uploads go: two slots, by turns, the first in turn 0. A slot may be
// uploaded to again when the turn in which lanes took from it is over.
struct UploadSlots {
  char* data = nullptr;      // of both, on the device
  int64_t bytes = 0;         // of each; a multiple of 16
  int64_t* turn = nullptr;   // on the device: turns so far
  int64_t* taken = nullptr;  // the same, for the host
};

class HostLink {
 public:
  virtual ~HostLink() = default;

  // Memory of the host that lanes reach too: zero filled, 8-byte aligned, freed
  // with the backend. `where`, `ring`, `taken` and `host` below lie in it.
  virtual absl::StatusOr<void*> AllocateShared(int64_t bytes) = 0;
  // Memory of the device: zero filled, 256-byte aligned, freed with the
  // backend.
  virtual absl::StatusOr<void*> AllocateDevice(int64_t bytes) = 0;

  // Begins to copy from shared to the device's memory at once, beside all
  // lanes: neither waits for the other.
  virtual void Upload(void* device, const void* host, int64_t bytes) = 0;
  // Whether all uploads have ended: what is enqueued from then on finds them.
  virtual bool Uploaded() = 0;

  // These enqueue on a lane, in a capture as anywhere.
  // *where = value.
  virtual void Mark(int lane, int64_t* where, int64_t value) = 0;
  // Appends the ring->words x 8 bytes at `device`.
  virtual void Append(int lane, RecordRing* ring, const void* device) = 0;
  // device = `bytes` at `begin` in the slot whose turn it is.
  virtual void Take(int lane, void* device, const UploadSlots& slots,
                    int64_t begin, int64_t bytes) = 0;
  // Behind the takes of a turn: that is over.
  virtual void EndTurn(int lane, const UploadSlots& slots) = 0;

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
