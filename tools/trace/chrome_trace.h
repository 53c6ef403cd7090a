// ChromeTrace: the text of a trace file that Perfetto and chrome://tracing
// open: ranks as processes, lanes as threads, an event per node.
//
// The JSON object form: "traceEvents" holds complete events ("X") of nodes with
// {"node", "scope", "unit", "phase", "direction", "step", "bytes", "flops"},
// of the host thread the steps, what it enqueued and its waits; metadata ("M")
// names processes and threads; an arrow ("s", "f") for each edge between lanes
// shows what a node waited for. Microseconds from the first event.
#ifndef TOOLS_TRACE_CHROME_TRACE_H_
#define TOOLS_TRACE_CHROME_TRACE_H_

#include <string>

#include "absl/types/span.h"
#include "graph/step_plan.h"
#include "tools/trace/rank_trace.h"

namespace shardgraph {

// `ranks` ran `plan`.
std::string ChromeTrace(const StepPlan& plan,
                        absl::Span<const RankTrace> ranks);

}  // namespace shardgraph

#endif  // TOOLS_TRACE_CHROME_TRACE_H_
