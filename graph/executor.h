// Executor: binds a StepPlan to a backend, communicators and a rank, then runs
// phases.
//
// Create allocates the arena (once, exactly MemoryPlan::arena_bytes), binds
// every node to a prepared kernel and every edge to an event. Run walks the
// schedule; when capturing is on, the first run of a phase is followed by the
// same walk into a capture, which is replayed from the second run on. After the
// first run of a phase nothing is allocated and nothing is looked up by name.
//
// On a backend whose lanes run beside the host (HostLink) a replayed phase
// takes its inputs in (Stage), marks where each lane stands and reports what
// came out (ReadReport) while the host waits for nothing: step_link.h.
//
// Errors: Internal where a kernel or a collective says that what it was given
// is wrong (kernels/internal_error.h): the plan was checked before.
//
// Threads: one host thread. Several executors (ranks) may live in one process,
// each with its backend.
#ifndef GRAPH_EXECUTOR_H_
#define GRAPH_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "graph/step_plan.h"
#include "graph/trace.h"
#include "kernels/backend.h"
#include "kernels/collective/communicator.h"

namespace shardgraph {

struct ExecutorOptions {
  Backend* backend = nullptr;  // outlives the executor
  CommunicatorFactory* communicators =
      nullptr;  // outlives the executor; may be null for a world of one
  bool capture =
      true;  // record each phase after its first run, replay from the second on
  // Collective, called after each recording: whether all ranks have made
  // theirs; otherwise none replays. Null: what a rank does concerns no other.
  std::function<absl::StatusOr<bool>(bool mine)> agree;
  // Reported behind each run of this phase; kNone: nothing is.
  PhaseId report_after = kNone;
  BufferId report = kNone;  // of multiples of 8 bytes, for the run's lifetime
  // Records when nodes run, while it is started; outlives the executor, with
  // num_lanes lanes. Null: nothing is recorded.
  TraceRecorder* trace = nullptr;
  // Debugging: after each node, on its lane. Turns capture off.
  std::function<absl::Status(NodeId node)> after_node;
};

// Raw bytes of a plan's buffers: those of an executor, or a copy of them.
class BufferReader {
 public:
  virtual ~BufferReader() = default;
  virtual absl::Status ReadBuffer(BufferId buffer, int64_t offset, void* host,
                                  int64_t bytes) = 0;
  // The bytes where they are, until they are written again; null where they
  // have to be read.
  virtual const char* View(BufferId, int64_t /*offset*/, int64_t /*bytes*/) {
    return nullptr;
  }
};

class Executor : public BufferReader {
 public:
  // `plan` outlives the executor. Collective: all ranks create their executors
  // alike.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(
      const StepPlan& plan, const ExecutorOptions& options);
  // Enqueues one run of the phase; the first run of a phase that is captured is
  // waited for. Errors appear here or at Synchronize.
  virtual absl::Status Enqueue(PhaseId phase) = 0;
  // Waits for everything enqueued; the first error, naming node, unit and
  // phase.
  virtual absl::Status Synchronize() = 0;
  absl::Status Run(PhaseId phase) {
    const absl::Status status = Enqueue(phase);
    return status.ok() ? Synchronize() : status;
  }

  // Debugging: runs the phase once, eagerly, in the schedule's total order;
  // each node is waited for, then `after` is called on this thread. Collective.
  virtual absl::Status RunNodes(PhaseId phase,
                                absl::FunctionRef<void(NodeId node)> after) = 0;

  // Host to device and back; `bytes` must be the value's contiguous size.
  // Ordered with runs.
  virtual absl::Status Write(ValueId value, const void* host,
                             int64_t bytes) = 0;
  virtual absl::Status Read(ValueId value, void* host, int64_t bytes) = 0;
  // The same on raw bytes of a buffer; and ReadBuffer.
  virtual absl::Status WriteBuffer(BufferId buffer, int64_t offset,
                                   const void* host, int64_t bytes) = 0;

  // As WriteBuffer, for what changes with each run and lanes do not write:
  // there when the next phase runs. The host goes on at once where it can.
  virtual absl::Status Stage(BufferId buffer, int64_t offset, const void* host,
                             int64_t bytes) {
    return WriteBuffer(buffer, offset, host, bytes);
  }
  virtual absl::Status StageValue(ValueId value, const void* host,
                                  int64_t bytes) {
    return Write(value, host, bytes);
  }

  // For the host that has enqueued a step and now waits for it: what `stage`
  // stages is what the next run of the phase will probably be given, all of it.
  // Where lanes run beside the host it is uploaded at once; otherwise `stage`
  // is not called. What that run is given is what is staged for it all the
  // same.
  virtual absl::Status Ahead(PhaseId phase,
                             absl::FunctionRef<absl::Status()> stage) {
    return absl::OkStatus();
  }

  // The first `bytes` of the reported buffer, as run `number` (from 0) of its
  // phase has left it; waits for that run. OutOfRange when later reports have
  // taken its place.
  virtual absl::Status ReadReport(uint64_t number, void* host, int64_t bytes) {
    return absl::UnimplementedError("this executor has no reports");
  }
  // How many runs of that phase have been enqueued.
  virtual uint64_t reports() const { return 0; }

  // Why phases run eagerly although they were to be captured; empty: they do
  // not.
  virtual std::string EagerReason() const { return ""; }

  virtual void* arena() const = 0;
  virtual int64_t arena_bytes() const = 0;

  // From any thread: where each lane stands, for the watchdog: a line per lane
  // with phase, unit and node (after an error, where it came up), and one,
  // indented, with the nodes that ended last on it.
  virtual std::string Progress() const = 0;
  // From any thread: how often kernels have begun or ended, over all lanes. It
  // stands still when nothing runs, or when what runs is stuck.
  virtual int64_t Advance() const = 0;
  // From any thread: makes a blocked Synchronize return with `reason`.
  virtual void Abort(const absl::Status& reason) = 0;
};

}  // namespace shardgraph

#endif  // GRAPH_EXECUTOR_H_
