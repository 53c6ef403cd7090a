#include "tools/plan/attention_kernels.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/strip.h"
#include "kernels/attention/cudnn.h"
#include "tools/plan/target_workspace.h"

namespace shardgraph {

std::vector<AttentionKernels> AttentionKernelsOf(const Graph& graph,
                                                 const TargetSpec& target) {
  std::vector<AttentionKernels> all;
  if (!IsGpu(target)) return all;
  for (const Phase& phase : graph.phases) {
    for (NodeId id : phase.nodes) {
      const Node& node = graph.nodes[id];
      if (node.op->name != "attention" && node.op->name != "attention_gradient")
        continue;
      const absl::Status supported = CudnnSupports(
          node.attributes, graph.OperandTypes(node), graph.ResultTypes(node));
      AttentionKernels kernels = {
          .op = std::string(node.op->name),
          .nodes = 1,
          .own_kernel_reason =
              std::string(absl::StripPrefix(supported.message(), "cuDNN: "))};
      const auto alike =
          std::find_if(all.begin(), all.end(), [&](const AttentionKernels& k) {
            return k.op == kernels.op &&
                   k.own_kernel_reason == kernels.own_kernel_reason;
          });
      if (alike != all.end()) {
        ++alike->nodes;
      } else {
        all.push_back(std::move(kernels));
      }
    }
  }
  return all;
}

}  // namespace shardgraph
