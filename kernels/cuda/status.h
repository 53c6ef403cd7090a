// Errors of the CUDA runtime as Status.
#ifndef KERNELS_CUDA_STATUS_H_
#define KERNELS_CUDA_STATUS_H_

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shardgraph::cuda {

// OK, or an error that names `what` was done, CUDA's name and number of the
// error and, where the cause is known, the remedy: "launch of rms_norm: CUDA
// error 9 (cudaErrorInvalidConfiguration)". Out of memory is ResourceExhausted,
// no usable device Unavailable, everything else Internal.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

}  // namespace shardgraph::cuda

// Returns from the enclosing function unless the runtime call `expression`
// succeeds; the message shows the call itself.
#define SG_RETURN_IF_CUDA_ERROR(expression)                           \
  do {                                                                \
    if (const cudaError_t cuda_error = (expression);                  \
        cuda_error != cudaSuccess)                                    \
      return ::shardgraph::cuda::CudaStatus(cuda_error, #expression); \
  } while (false)

#endif  // KERNELS_CUDA_STATUS_H_
