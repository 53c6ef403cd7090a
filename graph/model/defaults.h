// The defaults of a module tree, written out.
#ifndef GRAPH_MODEL_DEFAULTS_H_
#define GRAPH_MODEL_DEFAULTS_H_

#include "proto/model.pb.h"

namespace shardgraph {

// Sets every unset field of `module` and the modules below it that has a
// default (see model.proto), class names included. Idempotent.
void FillDefaults(ModuleSpec* module);

}  // namespace shardgraph

#endif  // GRAPH_MODEL_DEFAULTS_H_
