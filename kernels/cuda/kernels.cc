#include "kernels/cuda/kernels.h"

#include "kernels/attention/attention.h"
#include "kernels/collective/collective_ops.h"
#include "kernels/embedding/embedding.h"
#include "kernels/layout/layout.h"
#include "kernels/loss/loss.h"
#include "kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/random/dropout.h"
#include "kernels/rotary_apart.h"
#include "kernels/widened.h"

namespace shardgraph {

const KernelTable& CudaKernels() {
  static const auto& table = *new KernelTable({
      // Later lists win.
      WidenedKernels<CudaKernels>(),
      RotaryApartKernels<CudaKernels>(),
      MatmulCudaKernels(),
      AttentionCudaKernels(),
      NormCudaKernels(),
      PointwiseCudaKernels(),
      RandomCudaKernels(),
      EmbeddingCudaKernels(),
      LossCudaKernels(),
      OptimizerCudaKernels(),
      LayoutCudaKernels(),
      CollectiveKernels(),
  });
  return table;
}

}  // namespace shardgraph
