// ModelFlopsOf: the FLOPs that a training step is credited with, for MFU.
#ifndef GRAPH_MODEL_FLOPS_H_
#define GRAPH_MODEL_FLOPS_H_

#include "graph/graph.h"

namespace shardgraph {

// Of one run of a phase with forward and backward, on one rank: 2 m n k of
// every product of the forward pass times 3, the output head included, causal
// attention counted half. What is computed again counts once.
double ModelFlopsOf(const Graph& graph, PhaseId phase);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_FLOPS_H_
