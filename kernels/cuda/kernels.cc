#include "kernels/cuda/kernels.h"

#include "kernels/collective/collective_ops.h"

namespace shardgraph {

const KernelTable& CudaKernels() {
  static const auto& table = *new KernelTable({
      CollectiveKernels(),
  });
  return table;
}

}  // namespace shardgraph
