// Watches every memory access of kernels: outside memory, misaligned, never
// written, and races between threads, blocks and operations.
//
// Kernels are compiled with -fsanitize=thread but linked without it: the calls
// that the compiler then puts before each access (__tsan_read4 and so on) are
// defined in checker.cc. So nothing depends on the schedule: a missing barrier
// or event edge is found on the first run that touches the memory. Code that
// is compiled without the flag runs just the same, unwatched.
//
// Two accesses by the same block are ordered by __syncthreads between them (and
// within a warp by __syncwarp); by different blocks of one kernel only through
// an atomic after a __threadfence (the last-block pattern); by different
// operations as Past says.
#ifndef TESTS_FAKE_CUDA_CHECKER_H_
#define TESTS_FAKE_CUDA_CHECKER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "tests/fake_cuda/order.h"

namespace shardgraph::fake_cuda::checker {

// What blocks of one running kernel have told each other through atomics.
struct KernelState {
  using Blocks = std::vector<bool>;
  std::unordered_map<const void*, Blocks> released;
};

// Where checker reports go (World::Report).
void Reset(bool enabled, void (*report)(const std::string&));
bool Enabled();

// Between these two, the calling OS thread's accesses belong to the operation.
void BeginOperation(Serial serial, const std::string& name, const Past* past);
void EndOperation();

// A copy or fill by the operation. False (and a report) if [p, p + bytes) is
// device memory but not within a live allocation. Copying what was never
// written is allowed, since padding travels with data; unless it is `used`.
bool Read(const void* p, size_t bytes, bool used = false);
bool Write(const void* p, size_t bytes);

// Forgets every access to device or pinned memory [p, p + bytes): as if never
// written, or as if written by the host.
void MarkUnwritten(const void* p, size_t bytes);
void MarkWritten(const void* p, size_t bytes);

// Called by the execution of a block.
void BeginBlock(KernelState* kernel, uint32_t block, uint32_t blocks,
                char* dynamic_shared, size_t dynamic_shared_bytes);
void EndBlock();
void Barrier();  // All threads of the block have arrived.
void WarpBarrier(int first_thread, unsigned lanes);
void Fence();
void SetThread(int thread);  // Who runs from here on.

}  // namespace shardgraph::fake_cuda::checker

#endif  // TESTS_FAKE_CUDA_CHECKER_H_
