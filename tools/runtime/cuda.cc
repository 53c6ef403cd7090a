#include "tools/runtime/cuda.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/collective/nccl.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/libraries.h"
#include "kernels/cuda/status.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using cuda::CudaStatus;

absl::Status NoGpu(const absl::Status& status) {
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return absl::UnavailableError(absl::StrCat(
      "no GPU: ", status.message(),
      visible == nullptr
          ? ""
          : absl::StrCat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")"),
      ". An NVIDIA GPU of compute capability 8.0 or newer and its driver were "
      "looked for; run `doctor` for what this machine has, or use --device=cpu "
      "(run.device=cpu)"));
}

}  // namespace

absl::StatusOr<std::vector<CudaGpu>> FindCudaGpus() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count);
      error != cudaSuccess) {
    cudaGetLastError();
    return NoGpu(CudaStatus(error, "cudaGetDeviceCount"));
  }
  if (count == 0) return NoGpu(absl::UnavailableError("none is visible"));
  std::vector<CudaGpu> gpus(count);
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, i);
        error != cudaSuccess) {
      cudaGetLastError();
      return NoGpu(CudaStatus(
          error, absl::StrCat("cudaGetDeviceProperties of device ", i)));
    }
    gpus[i].name = properties.name;
    gpus[i].major = properties.major;
    gpus[i].address =
        absl::StrFormat("%04x:%02x:%02x", properties.pciDomainID,
                        properties.pciBusID, properties.pciDeviceID);
    if (properties.major < 8) {
      return NoGpu(absl::UnavailableError(absl::StrCat(
          "device ", i, ", ", properties.name, ", has compute capability ",
          properties.major, ".", properties.minor)));
    }
  }
  return gpus;
}

absl::StatusOr<CudaRank> MakeCudaRank(Store& store,
                                      const CudaRankOptions& options) {
  CudaBackendOptions backend;
  backend.kernels = &CudaKernels();
  backend.device = options.device;
  backend.graph_files = options.graph_files;
  CudaRank rank;
  if (options.size > 1) {
    SG_RETURN_IF_ERROR(cuda::LoadNccl());
    // All collectives of this process keep the host's order.
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
    // NCCL takes the device that is current.
    SG_RETURN_IF_CUDA_ERROR(cudaSetDevice(options.device));
    SG_ASSIGN_OR_RETURN(std::unique_ptr<NcclFactory> factory,
                        MakeNcclFactory(store, {.rank = options.rank,
                                                .size = options.size,
                                                .timeout = options.timeout}));
    backend.allocate = [factory = factory.get()](int64_t bytes) {
      return factory->AllocateWindow(bytes);
    };
    backend.health = [factory = factory.get()] { return factory->Health(); };
    rank.communicators = std::move(factory);
  }
  SG_ASSIGN_OR_RETURN(rank.backend, MakeCudaBackend(std::move(backend)));
  return rank;
}

}  // namespace shardgraph
