// The part of Verify that proves padding harmless: bytes of a gradient that
// nobody writes and that pass through reductions all the same.
#ifndef GRAPH_VERIFY_PADDING_H_
#define GRAPH_VERIFY_PADDING_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "graph/graph.h"
#include "kernels/op.h"

namespace shardgraph {

// Sorted and disjoint, [begin, end).
using ByteRanges = std::vector<std::pair<int64_t, int64_t>>;

// A node whose operand has bytes, of its buffer, that nothing has written.
struct PaddingRead {
  NodeId node = kNone;
  int operand = 0;
  ByteRanges bytes;
};
using PaddingReads = std::vector<PaddingRead>;

// Ops that may read bytes which nobody wrote, where padding is all that they
// read so.
bool PassesPadding(const OpDef& op);

// Follows what `reads` (of all phases, by nodes for which PassesPadding) let in
// through reductions and accumulation, element by element: on every rank, or,
// behind a reduce-scatter or an exchange of pieces that are added up, on the
// rank whose piece of the whole it is in. It
// may end in gradient shards of step lifetime, and be read by ops whose
// attribute "segments" leaves it out. Anything else that reads it, names it as
// an output or keeps it for the run is refused, and so is what cannot be
// followed.
absl::Status VerifyPadding(const Graph& graph, const PaddingReads& reads);

}  // namespace shardgraph

#endif  // GRAPH_VERIFY_PADDING_H_
