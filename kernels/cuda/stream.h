// The CUDA stream of a lane.
#ifndef KERNELS_CUDA_STREAM_H_
#define KERNELS_CUDA_STREAM_H_

#include <cuda_runtime.h>

#include "kernels/lane.h"

namespace shardgraph::cuda {

inline cudaStream_t StreamOf(const Lane& lane) {
  return static_cast<cudaStream_t>(lane.stream);
}

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_STREAM_H_
