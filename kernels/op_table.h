// The table of all ops: one line per family, no registration at start-up.
#ifndef KERNELS_OP_TABLE_H_
#define KERNELS_OP_TABLE_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/op.h"

namespace shardgraph {

// Null when there is no such op.
const OpDef* FindOp(absl::string_view name);
// The family of an op, as its folder is called: "matmul", "norm"; empty for a
// name that is none.
absl::string_view FamilyOf(absl::string_view op);
// In family order.
const std::vector<const OpDef*>& AllOps();

}  // namespace shardgraph

#endif  // KERNELS_OP_TABLE_H_
