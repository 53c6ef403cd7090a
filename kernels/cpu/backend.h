// The CPU backend: lanes are threads, events are positions in lanes, device
// memory is host memory.
//
// It runs whatever kernels its table holds, so the reference kernels run on it
// as well as the fast ones.
//
// Lanes. With several lanes each is a thread; lane 0 computes and owns the
// worker pool. With one lane everything runs inside Launch and Replay on the
// host thread: then each rank of a process needs a host thread of its own,
// because a collective blocks it until the peers arrive.
//
// Order. Eager commands are ordered by lane and by events alone. A replay is
// ordered as a whole behind everything enqueued before it, and what is enqueued
// later behind the whole replay; a captured Wait therefore sees Records of its
// own capture only. Replay wakes each lane once and neither allocates nor looks
// anything up.
//
// Errors. After the first failed kernel all lanes skip the kernels that are
// left but still record events, so that nobody waits forever.
#ifndef KERNELS_CPU_BACKEND_H_
#define KERNELS_CPU_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"

namespace shardgraph {

struct CpuBackendOptions {
  std::string name = "cpu";              // or "reference"
  const KernelTable* kernels = nullptr;  // outlives the backend; never null

  // Threads of lane 0, its own included.
  int threads = 1;
  // Threads of the other lanes: entry i is lane i + 1; 1 where there is none.
  std::vector<int> other_lane_threads;
  CpuSet binding;  // cores of all lane threads and their workers

  // Where Allocate takes memory from, zero filled and 4,096-byte aligned, not
  // freed by the backend: CommunicatorFactory::AllocateWindow. Null, or a null
  // result with OK: the backend's own pages.
  std::function<absl::StatusOr<void*>(int64_t bytes)> allocate;
};

// InvalidArgument names the field that is wrong.
absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(
    CpuBackendOptions options);

}  // namespace shardgraph

#endif  // KERNELS_CPU_BACKEND_H_
