// The CUDA backend: lanes are streams, a recording is one CUDA graph.
//
// It links against the CUDA runtime or, in tests, against the CUDA double
// (tests/fake_cuda). Kernels enqueue on lane.stream.
//
// Lanes. Lane 0 computes. The streams of the other lanes, which move data
// between ranks, have the highest priority, so that their kernels are not
// queued behind computing ones.
//
// Order. As on the CPU: eager commands are ordered by lane and by events alone,
// a replay as a whole behind everything enqueued before it and before
// everything enqueued after it, copies likewise. A captured Wait sees Records
// of its own capture only.
//
// A step that is replayed calls nothing of the runtime but the graph launch,
// the upload of its inputs and queries of HostLink (Poll, Uploaded); a copy of
// the host's own, for each chunk, the copy and an event behind it. Nothing is
// allocated and nothing waits.
//
// HostLink: pinned memory, kernels that write to it (signals.h), and a stream
// of its own for uploads. Ranges are NVTX's.
//
// Errors. The first one, of a call, a kernel or `health`, is returned from then
// on by everything that returns a status; it names the call and CUDA's error.
//
// Threads: the host thread that has made it, whose current device it sets.
#ifndef KERNELS_CUDA_BACKEND_H_
#define KERNELS_CUDA_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace shardgraph {

struct CudaBackendOptions {
  const KernelTable* kernels = nullptr;  // outlives the backend; never null
  int device = 0;                        // index among the visible devices

  // Where Allocate takes memory from, zero filled and 4,096-byte aligned, not
  // freed by the backend: CommunicatorFactory::AllocateWindow, which gives
  // memory that collectives can use as a window. Null, or a null result with
  // OK: cudaMalloc.
  std::function<absl::StatusOr<void*>(int64_t bytes)> allocate;

  // Called again and again while the host waits for the device. An error ends
  // the wait: a communicator is broken, and what was enqueued may never end.
  // Null: nothing but the device ends a wait.
  std::function<absl::Status()> health;

  // Pinned memory through which the host's data goes: this many chunks of this
  // many bytes. A copy to the device of at most that returns without waiting
  // when its chunks are free.
  int64_t chunk_bytes = int64_t{1} << 20;
  int num_chunks = 8;

  // Where each captured graph is drawn, in Graphviz's language: this and
  // "1.dot", "2.dot", ... Empty: nowhere.
  std::string graph_files;
};

// InvalidArgument names the field that is wrong; Unavailable when there is no
// usable device, saying why.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(
    CudaBackendOptions options);

}  // namespace shardgraph

#endif  // KERNELS_CUDA_BACKEND_H_
