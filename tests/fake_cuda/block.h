// Executes one thread block: its threads as fibers on this OS thread.
//
// A thread runs until it has to wait at a barrier or in a warp operation, then
// hands over to the next one that can run, in an order decided by the seed. A
// thread that never waits costs a function call and no switch. Threads that
// leave a barrier incomplete (some wait, the others have returned) are found
// and reported; on a GPU that would be undefined or a hang.
#ifndef TESTS_FAKE_CUDA_BLOCK_H_
#define TESTS_FAKE_CUDA_BLOCK_H_

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/fake_cuda/checker.h"
#include "tests/fake_cuda/random.h"

namespace shardgraph::fake_cuda {

struct KernelType;

// A kernel with its arguments, copied when it was launched.
struct KernelLaunch {
  const void* kernel;
  const KernelType* type;
  std::string name;
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  std::vector<unsigned char> arguments;
};

struct BlockResult {
  cudaError_t error = cudaSuccess;
  std::string report;       // What went wrong, where.
  bool tells_host = false;  // It has fenced what the host may see.
};

// Runs block `index` (linear, x fastest) to its end.
BlockResult RunBlock(const KernelLaunch& launch, uint32_t index,
                     checker::KernelState* state, bool poison_shared,
                     Random* random);

// Runs `body` with SIGSEGV and the like turned into a result, as in RunBlock.
BlockResult RunGuarded(const std::string& name, void (*body)(void*),
                       void* argument);

int64_t SwitchCount();

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_BLOCK_H_
