#include "kernels/op_table.h"

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

namespace shardgraph {

const std::vector<const OpDef*>& AllOps() {
  static const auto& ops = *[] {
    auto* all = new std::vector<const OpDef*>();
    for (const absl::Span<const OpDef* const> family :
         {MatmulOps(), AttentionOps(), NormOps(), PointwiseOps(), RandomOps(),
          EmbeddingOps(), LossOps(), OptimizerOps(), LayoutOps(),
          CollectiveOps()}) {
      all->insert(all->end(), family.begin(), family.end());
    }
    return all;
  }();
  return ops;
}

const OpDef* FindOp(absl::string_view name) {
  for (const OpDef* op : AllOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

}  // namespace shardgraph
