// The ThreadPool of CPU lanes.
#ifndef KERNELS_CPU_THREAD_POOL_H_
#define KERNELS_CPU_THREAD_POOL_H_

#include <memory>
#include <vector>

#include "kernels/lane.h"

namespace shardgraph {

// Numbers of cores that threads may run on; empty: any.
using CpuSet = std::vector<int>;

// A pool of `num_threads` (at least 1) threads: the caller of ParallelFor and
// num_threads - 1 workers, which may run on the cores of `binding`. Binding is
// advice: cores that the process may not use are left out.
//
// Ranges begin at multiples of `grain` whatever the number of threads, so that
// a body whose result depends on its range alone gives the same bits on any
// number of threads. Threads take ranges in turn; workers that wake up too late
// are not waited for, so the pool works where threads outnumber cores. With one
// thread or one range the caller runs everything, in order.
//
// ParallelFor must not be called from within a body. Bodies must not throw.
std::unique_ptr<ThreadPool> MakeThreadPool(int num_threads,
                                           const CpuSet& binding = {});

// Lets the calling thread run on the cores of `binding` only (advice, as
// above).
void BindThisThread(const CpuSet& binding);

}  // namespace shardgraph

#endif  // KERNELS_CPU_THREAD_POOL_H_
