// Lane: where a kernel is launched. A CPU lane is a thread that owns a share of
// the worker pool; a CUDA lane is a stream.
//
// Kernels of a CPU backend run synchronously inside Launch and may use `pool`;
// CUDA kernels enqueue on `stream`.
#ifndef KERNELS_LANE_H_
#define KERNELS_LANE_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace shardgraph {

// Runs loop bodies on a fixed number of threads, the caller being one of them.
// No allocation per call. One caller at a time.
class ThreadPool {
 public:
  virtual ~ThreadPool() = default;
  virtual int num_threads() const = 0;  // at least 1
  // Calls body(begin, end) over disjoint ranges that cover [0, n), each at most
  // `grain` long except that no range is empty. Which thread runs which range
  // is not fixed: results must not depend on it.
  virtual void ParallelFor(
      int64_t n, int64_t grain,
      absl::FunctionRef<void(int64_t begin, int64_t end)> body) = 0;
};

struct Lane {
  int index = 0;
  ThreadPool* pool = nullptr;  // CPU backends only; never null there
  void* stream = nullptr;      // CUDA backend only: a cudaStream_t
};

}  // namespace shardgraph

#endif  // KERNELS_LANE_H_
