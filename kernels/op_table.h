// The table of all ops: one line per family, no registration at start-up.
#ifndef KERNELS_OP_TABLE_H_
#define KERNELS_OP_TABLE_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/op.h"

namespace shardgraph {

// A folder of ops: "matmul" holds matmul and column_sum.
struct OpFamily {
  absl::string_view name;
  absl::Span<const OpDef* const> ops;
};
const std::vector<OpFamily>& OpFamilies();
// The name of an op's family; empty for a name that is no op.
absl::string_view FamilyOf(absl::string_view op);

// Null when there is no such op.
const OpDef* FindOp(absl::string_view name);
// In family order.
const std::vector<const OpDef*>& AllOps();

}  // namespace shardgraph

#endif  // KERNELS_OP_TABLE_H_
