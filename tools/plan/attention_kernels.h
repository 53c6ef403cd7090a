// Which kernels a plan's attention takes on a GPU, and why not cuDNN's.
#ifndef TOOLS_PLAN_ATTENTION_KERNELS_H_
#define TOOLS_PLAN_ATTENTION_KERNELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "proto/target.pb.h"

namespace shardgraph {

struct AttentionKernels {
  std::string op;                 // "attention", "attention_gradient"
  int64_t nodes = 0;              // of all phases
  std::string own_kernel_reason;  // empty: cuDNN does them
};

// Alike ones together, in program order; none on a target that is no GPU.
std::vector<AttentionKernels> AttentionKernelsOf(const Graph& graph,
                                                 const TargetSpec& target);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_ATTENTION_KERNELS_H_
