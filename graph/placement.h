// Offsets for buffers that may share bytes when their uses are ordered.
#ifndef GRAPH_PLACEMENT_H_
#define GRAPH_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "graph/lifetimes.h"

namespace shardgraph {

struct PlacementItem {
  int64_t bytes = 0;
  int64_t alignment = 1;
  std::vector<Use> uses;  // at least one
};

struct PlacementResult {
  std::vector<int64_t> offsets;  // by item, from 0
  int64_t bytes = 0;             // end of the last item
};

// Places the items greedily in several orders (longest use, largest, their
// product), then again with those that stick out moved to the front, and keeps
// the best. Stops when `good_enough` bytes are reached. The effort is bounded
// by the number of items, never by time: the result is the same everywhere.
PlacementResult Place(const std::vector<PlacementItem>& items,
                      int64_t good_enough);

}  // namespace shardgraph

#endif  // GRAPH_PLACEMENT_H_
