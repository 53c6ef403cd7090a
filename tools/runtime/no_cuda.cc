#include "absl/status/status.h"
#include "tools/runtime/cuda.h"

namespace shardgraph {
namespace {

absl::Status NoCuda() {
  return absl::UnavailableError(
      "no GPU: this program was built without CUDA; use --device=cpu "
      "(run.device=cpu), or build it where the CUDA toolkit is (CUDA_HOME, "
      "else "
      "/usr/local/cuda)");
}

}  // namespace

absl::StatusOr<std::vector<CudaGpu>> FindCudaGpus() { return NoCuda(); }

absl::StatusOr<CudaRank> MakeCudaRank(Store&, const CudaRankOptions&) {
  return NoCuda();
}

}  // namespace shardgraph
