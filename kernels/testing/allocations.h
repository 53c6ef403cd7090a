// Counts heap allocations: a test that links this has its own operator new.
//
// Counts operator new on any thread; not malloc called by C libraries.
#ifndef KERNELS_TESTING_ALLOCATIONS_H_
#define KERNELS_TESTING_ALLOCATIONS_H_

#include <cstdint>

namespace shardgraph {

// Since the process started.
int64_t NumAllocations();
// Of the calling thread, since it started.
int64_t NumThreadAllocations();
// Bytes that are allocated now, and the most there have been at once, since the
// process started or since the last ForgetMostLiveBytes.
int64_t LiveBytes();
int64_t MostLiveBytes();
void ForgetMostLiveBytes();

}  // namespace shardgraph

#endif  // KERNELS_TESTING_ALLOCATIONS_H_
