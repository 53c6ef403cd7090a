// What a program has of CUDA, for Runtime.
//
// A program links one of the definitions: //tools/runtime:devices, which has
// CUDA where it was there at build time, or in tests :devices_on_double.
#ifndef TOOLS_RUNTIME_CUDA_H_
#define TOOLS_RUNTIME_CUDA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/backend.h"
#include "kernels/collective/communicator.h"
#include "kernels/collective/store.h"

namespace shardgraph {

struct CudaGpu {
  std::string name;     // "NVIDIA H200"
  int major = 0;        // of its compute capability
  std::string address;  // on the PCI bus; tells the GPUs of a host apart
};

// The GPUs that are visible, at least one. Unavailable: "no GPU", what was
// looked for, and the remedy.
absl::StatusOr<std::vector<CudaGpu>> FindCudaGpus();

struct CudaRankOptions {
  int rank = 0;  // world rank
  int size = 1;  // of the world
  int device = 0;
  absl::Duration timeout;   // of each meeting of ranks, until SetTimeout
  std::string graph_files;  // CudaBackendOptions::graph_files
};

// Destroyed from the bottom up.
struct CudaRank {
  std::unique_ptr<CommunicatorFactory> communicators;  // null in a world of one
  std::unique_ptr<Backend> backend;
};

// `store` outlives the result.
absl::StatusOr<CudaRank> MakeCudaRank(Store& store,
                                      const CudaRankOptions& options);

}  // namespace shardgraph

#endif  // TOOLS_RUNTIME_CUDA_H_
