// Kernels by which a GPU tells the host where it stands and what came out.
// Plain, for .cu files.
#ifndef KERNELS_CUDA_SIGNALS_H_
#define KERNELS_CUDA_SIGNALS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/record_ring.h"

namespace shardgraph::cuda {

// *where = value, behind everything before it on the stream.
cudaError_t LaunchMark(int64_t* where, int64_t value, cudaStream_t stream);

// Appends ring->words words of device memory; `words` is that number.
cudaError_t LaunchAppend(RecordRing* ring, const void* from, int64_t words,
                         cudaStream_t stream);

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_SIGNALS_H_
