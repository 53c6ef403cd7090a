// Backend: memory, lanes, events and kernels of one device, seen the same from
// every device.
//
// The executor walks a plan once per run of a phase: Wait, Launch, Record on
// lanes, then Synchronize. Between BeginCapture and EndCapture the same walk is
// recorded instead, and Replay runs the recording.
//
// Threads: one host thread drives a backend. Errors of kernels appear at
// Synchronize: the first one wins; after it every lane skips its remaining work
// until the backend is destroyed.
#ifndef KERNELS_BACKEND_H_
#define KERNELS_BACKEND_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/kernel.h"
#include "kernels/lane.h"

namespace shardgraph {

class Backend {
 public:
  // What EndCapture returns; destroyed before the backend and before
  // communicators.
  class Recording {
   public:
    virtual ~Recording() = default;
  };

  virtual ~Backend() = default;

  virtual absl::string_view name()
      const = 0;  // "cpu", "reference", "cuda", "simulated"
  virtual const KernelTable& kernels() const = 0;

  // Device memory, zero filled, 4,096-byte aligned, owned by the backend and
  // freed with it. Called once per rank, for the arena.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;

  // Sets up `num_lanes` lanes and `num_events` events; once, before the first
  // Launch.
  virtual absl::Status Prepare(int num_lanes, int num_events) = 0;

  // Enqueue. A Wait returns when the newest Record of that event enqueued
  // before it has passed.
  virtual void Launch(int lane, PreparedKernel* kernel) = 0;
  virtual void Record(int lane, int event) = 0;
  virtual void Wait(int lane, int event) = 0;

  // Blocks until everything enqueued has run; the first error of any kernel.
  virtual absl::Status Synchronize() = 0;

  virtual absl::Status BeginCapture() = 0;
  virtual absl::StatusOr<std::unique_ptr<Recording>> EndCapture() = 0;
  // Enqueues the recording behind everything enqueued before, on all lanes.
  virtual void Replay(Recording* recording) = 0;

  // Between host and device memory, ordered behind everything enqueued before;
  // the host may reuse its memory when the call returns.
  virtual absl::Status CopyToDevice(void* device, const void* host,
                                    int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* host, const void* device,
                                  int64_t bytes) = 0;
  // Whether the host can read device memory where it is.
  virtual bool on_host() const { return false; }
};

}  // namespace shardgraph

#endif  // KERNELS_BACKEND_H_
