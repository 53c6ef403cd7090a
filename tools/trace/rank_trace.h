// RankTrace: what one rank recorded of some steps, as it travels to the rank
// that writes the trace of all.
#ifndef TOOLS_TRACE_RANK_TRACE_H_
#define TOOLS_TRACE_RANK_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/step_plan.h"
#include "graph/trace.h"

namespace shardgraph {

struct RankTrace {
  int rank = 0;
  // Oldest first. Times are nanoseconds since the Unix epoch: ranks of one
  // host agree to a microsecond, hosts as well as their clocks do.
  std::vector<std::vector<TraceEvent>> lanes;
  std::vector<TraceEvent> host;
};

// The events of each ring that `steps` steps of `micro_batches` fill.
int64_t TraceCapacity(const StepPlan& plan, int64_t micro_batches,
                      int64_t steps);

// Of the host thread, while no lane works.
RankTrace TakeTrace(const TraceRecorder& recorder, int rank);

// Bytes and back, between ranks of one build. DataLoss for anything else.
std::string PackTrace(const RankTrace& trace);
absl::StatusOr<RankTrace> UnpackTrace(absl::string_view bytes);

}  // namespace shardgraph

#endif  // TOOLS_TRACE_RANK_TRACE_H_
