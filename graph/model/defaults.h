// The defaults of a model's spec, written out.
#ifndef GRAPH_MODEL_DEFAULTS_H_
#define GRAPH_MODEL_DEFAULTS_H_

#include <cstdint>

#include "proto/model.pb.h"

namespace shardgraph {

// Sets every unset field of `module` and the modules below it that has a
// default (see model.proto), class names included. Idempotent.
void FillDefaults(ModuleSpec* module);

// The rank of adapters, and alpha / rank.
int64_t LoraRank(const LoraSpec& spec);
double LoraScale(const LoraSpec& spec);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_DEFAULTS_H_
