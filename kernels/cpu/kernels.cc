#include "kernels/cpu/kernels.h"

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

std::vector<absl::Span<const KernelDef>> CpuKernelLists() {
  return {
      // Later lists win.
      MatmulReferenceKernels(),
      AttentionReferenceKernels(),
      NormReferenceKernels(),
      PointwiseReferenceKernels(),
      RandomReferenceKernels(),
      EmbeddingReferenceKernels(),
      LossReferenceKernels(),
      OptimizerReferenceKernels(),
      LayoutReferenceKernels(),
      CollectiveKernels(),
      WidenedKernels<CpuKernels>(),
      RotaryApartKernels<CpuKernels>(),
      MatmulCpuKernels(),
      AttentionCpuKernels(),
      NormCpuKernels(),
      PointwiseCpuKernels(),
      RandomCpuKernels(),
      EmbeddingCpuKernels(),
      LossCpuKernels(),
      OptimizerCpuKernels(),
      LayoutCpuKernels(),
  };
}

const KernelTable& CpuKernels() {
  static const auto& table = *new KernelTable(CpuKernelLists());
  return table;
}

}  // namespace shardgraph
