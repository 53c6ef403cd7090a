// The libraries of CUDA that programs load when they use a GPU, not when they
// start: the same program runs where there are none.
//
// Calls look as if the libraries were linked. What stands behind the names is
// filled in by the functions here; a call before that ends the program.
#ifndef KERNELS_CUDA_LIBRARIES_H_
#define KERNELS_CUDA_LIBRARIES_H_

#include "absl/status/status.h"

namespace shardgraph::cuda {

// Loads NCCL, which only several ranks need. Unavailable names the library that
// is missing or too old, the places that were looked at, and the remedy. Thread
// safe; at once the second time.
absl::Status LoadNccl();

// cuBLASLt, which every program on a GPU needs; likewise.
absl::Status LoadCublasLt();

// cuDNN, without which own kernels do what it would; likewise.
absl::Status LoadCudnn();

}  // namespace shardgraph::cuda

#endif  // KERNELS_CUDA_LIBRARIES_H_
