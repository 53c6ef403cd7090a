// PrepareCudnnAttention where cuDNN is not installed.
#include "kernels/attention/cudnn.h"

namespace shardgraph {

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareCudnnAttention(
    const KernelContext&) {
  return absl::UnimplementedError("built without cuDNN");
}

}  // namespace shardgraph
