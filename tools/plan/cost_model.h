// The cost model of a target: seconds of a node, from its OpDef and the
// target's peaks.
#ifndef TOOLS_PLAN_COST_MODEL_H_
#define TOOLS_PLAN_COST_MODEL_H_

#include <functional>

#include "graph/graph.h"
#include "proto/target.pb.h"

namespace shardgraph {

// Seconds that a node takes; finite, 0 or more.
using NodeSeconds = std::function<double(const Graph& graph, const Node& node)>;

// A collective that moves S bytes per rank (graph/step_plan.h:
// CommunicationVolume) takes S / network_bandwidth + network_latency; any other
// node max(FLOPs / peak, bytes / memory_bandwidth) + launch_latency, where
// FLOPs of products count against the peak of their operands' dtype and the
// rest against fp32_flops. A peak of 0 is unknown and takes no time.
NodeSeconds CostModel(const TargetSpec& target);

}  // namespace shardgraph

#endif  // TOOLS_PLAN_COST_MODEL_H_
