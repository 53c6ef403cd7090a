// Kernels and communicators that do nothing: what is left of a run is what the
// engine itself costs.
#ifndef TOOLS_BENCH_NULL_DEVICE_H_
#define TOOLS_BENCH_NULL_DEVICE_H_

#include <memory>

#include "kernels/collective/communicator.h"
#include "kernels/kernel.h"

namespace shardgraph {

// A kernel for each op of the op table, whatever the types. Its launch returns
// at once and leaves the results as they are.
const KernelTable& NullKernels();

// Rank 0 of a world of `world_size`, whose collectives return at once: peers
// are never late, so one process runs the plan of any world.
std::unique_ptr<CommunicatorFactory> MakeNullCommunicators(int world_size);

}  // namespace shardgraph

#endif  // TOOLS_BENCH_NULL_DEVICE_H_
