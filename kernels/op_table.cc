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

const std::vector<OpFamily>& OpFamilies() {
  static const auto& families = *new std::vector<OpFamily>{
      {"matmul", MatmulOps()}, {"attention", AttentionOps()},
      {"norm", NormOps()},     {"pointwise", PointwiseOps()},
      {"random", RandomOps()}, {"embedding", EmbeddingOps()},
      {"loss", LossOps()},     {"optimizer", OptimizerOps()},
      {"layout", LayoutOps()}, {"collective", CollectiveOps()}};
  return families;
}

const std::vector<const OpDef*>& AllOps() {
  static const auto& ops = *[] {
    auto* all = new std::vector<const OpDef*>();
    for (const OpFamily& family : OpFamilies())
      all->insert(all->end(), family.ops.begin(), family.ops.end());
    return all;
  }();
  return ops;
}

absl::string_view FamilyOf(absl::string_view op) {
  for (const OpFamily& family : OpFamilies()) {
    for (const OpDef* def : family.ops) {
      if (def->name == op) return family.name;
    }
  }
  return "";
}

const OpDef* FindOp(absl::string_view name) {
  for (const OpDef* op : AllOps()) {
    if (op->name == name) return op;
  }
  return nullptr;
}

}  // namespace shardgraph
