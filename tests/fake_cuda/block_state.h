// The block that is running: what block.cc, warp.cc and fault.cc share.
#ifndef TESTS_FAKE_CUDA_BLOCK_STATE_H_
#define TESTS_FAKE_CUDA_BLOCK_STATE_H_

#include <cstdint>
#include <string>

#include "tests/fake_cuda/block.h"
#include "tests/fake_cuda/device.h"
#include "tests/fake_cuda/fiber.h"

namespace shardgraph::fake_cuda {

inline constexpr int kMaxThreads = 1024;
inline constexpr int kMaxWarps = kMaxThreads / 32;

struct Thread {
  uint3 index;
  Fiber* fiber = nullptr;  // Set from the thread's start to its end.
  // The warp operation that it waits in.
  WarpOp warp_op;
  unsigned mask;
  int argument, width;
  uint64_t value;  // The operand, then the result.
};

// Lanes by state, one bit each. A lane that runs is in none of them.
struct Warp {
  unsigned fresh, runnable, in_warp_op, at_barrier, done;
};

struct Block {
  const KernelLaunch* launch;  // Null: no kernel runs.
  int threads;
  int warps;
  Thread thread[kMaxThreads];
  Warp warp[kMaxWarps];
  unsigned ready_warps;  // Those with a fresh or runnable lane.
  int current;           // The thread that runs.
  int done, at_barrier;
  // The barrier's combined predicates so far, and the last result.
  int any, all, count, result;
  // The order of warps and lanes: the lowest or highest, after rotation.
  int rotate;
  bool descending;
  BlockResult outcome;
};

// One at a time, under the world's lock.
extern Block b;
extern Fiber main_fiber;  // The OS thread's stack, while fibers run.

inline unsigned LaneBit(int thread) { return 1u << (thread % 32); }

// Makes lanes of a warp runnable again.
void Wake(int warp, unsigned lanes);
// Leaves the current thread until somebody wakes it.
void Wait();
// Completes warp operations that wait only for lanes which have now ended.
void CompleteWithoutEnded(int warp);

// Notes why the block is given up. Abandon() follows, as a statement of its
// own: what is then on the fiber's stack is never destroyed.
void Blame(cudaError_t error, const std::string& what);
// Returns to RunBlock or RunGuarded, and never to the caller.
[[noreturn]] void Abandon();

// Faults of this OS thread between these are turned into results (fault.cc).
void BeginGuard();
void EndGuard();
// Whether `address` is just below a fiber's stack.
bool IsStackOverflow(const void* address);

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_BLOCK_STATE_H_
