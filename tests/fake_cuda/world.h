// The double's streams, events, graphs and devices.
//
// A stream is a queue of operations that nobody executes until the host waits
// (or happens to call in while the seed says so). Then the operations at the
// heads of all queues are executed one piece at a time - a copy, some blocks
// of a kernel, a node of a graph - each time from a stream that the seed
// chooses among those that can go on. Only stream order and event edges hold
// an operation back. Everything runs on the OS thread that waits, under one
// lock, whichever thread's streams they are: so ranks that are threads of one
// process can wait for each other as on real devices.
#ifndef TESTS_FAKE_CUDA_WORLD_H_
#define TESTS_FAKE_CUDA_WORLD_H_

#include <cuda_runtime.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/fake_cuda/block.h"
#include "tests/fake_cuda/control.h"
#include "tests/fake_cuda/order.h"
#include "tests/fake_cuda/random.h"

namespace shardgraph::fake_cuda {

class World;

struct Meeting;

// What graphs and streams know of a communicator.
struct CommunicatorState {
  bool aborted = false;  // What it has enqueued ends at once and moves nothing.
};

// One operation as it was enqueued: immutable, and so replayable. Kernel
// arguments and copy parameters are inside, as they were then.
struct Work {
  std::string name;
  // Exactly one of the two.
  std::optional<KernelLaunch> kernel;
  std::function<void()> body;  // Copies, fills, host functions.
  // What the body will read and write, for the checker.
  struct Range {
    const void* begin;
    size_t bytes;
  };
  std::vector<Range> reads, writes;
  // What it reads must have been written; a copy may read anything.
  bool computes = false;
  // Set for a collective: the body runs once, when all ranks have arrived.
  std::function<std::shared_ptr<Meeting>()> arrive;
  // Of a collective: the rank's communicator, and whether it was aborted.
  std::shared_ptr<const CommunicatorState> communicator;
};

// The ranks of a communicator on their way into the same collective.
struct Meeting {
  std::string name;  // What the first to arrive has called.
  int expected = 0, arrived = 0;
  Past past;  // Everything before any rank's arrival.
  std::function<std::string()>
      exchange;  // Moves all data; empty if it went well.
  bool exchanged = false;
};

// A point in a stream: what an event records.
struct Marker {
  bool done = false;
  Past past;
  double milliseconds = 0;
};

struct Node {
  std::shared_ptr<const Work> work;
  std::vector<int> after;  // Indices of nodes it depends on: smaller ones.
  int priority = 0;        // Of the stream it was captured in.
};

// A graph as it is executed.
struct GraphProgram {
  std::vector<Node> nodes;
  std::vector<std::vector<int>> before;  // The opposite of Node::after.
};

struct Capture;

// An operation on its way through a stream.
struct Operation {
  enum Kind { kWork, kRecord, kWait, kGraph } kind;
  std::shared_ptr<const Work> work;
  std::shared_ptr<Marker> marker;
  std::shared_ptr<const GraphProgram> graph;
  std::shared_ptr<const Past> host;  // What the host had waited for by then.
};

// A kernel or copy that has started.
struct Running {
  std::shared_ptr<const Work> work;
  Serial serial = 0;
  Past past;
  uint32_t next_block = 0, blocks = 0, offset = 0, stride = 1;
  checker::KernelState checked;
  bool tells_host = false;           // See World::HostKnows.
  std::shared_ptr<Meeting> meeting;  // Of a collective, once arrived.
};

}  // namespace shardgraph::fake_cuda

// The opaque types of CUDA's handles.
struct CUstream_st {
  int device;
  int index;  // In order of creation; the legacy stream is 0.
  unsigned flags;
  int priority;
  bool legacy = false;
  std::deque<::shardgraph::fake_cuda::Operation> queue;
  ::shardgraph::fake_cuda::Past past;  // All that has been executed here.
  // The head, once started.
  std::unique_ptr<::shardgraph::fake_cuda::Running> running;
  struct GraphRun {
    std::vector<int> waits_for;  // Per node.
    std::vector<int> ready;
    std::map<int, std::unique_ptr<::shardgraph::fake_cuda::Running>> running;
    std::vector<::shardgraph::fake_cuda::Past>
        past;  // Per node that has ended.
    int left = 0;
  };
  std::unique_ptr<GraphRun> graph;
  uint64_t urgency = 0;  // The seed's present preference among streams.
  // While capturing.
  std::shared_ptr<::shardgraph::fake_cuda::Capture> capture;
  std::set<int> frontier;
};

struct CUevent_st {
  int device;
  unsigned flags;
  std::shared_ptr<::shardgraph::fake_cuda::Marker>
      marker;  // Null: never recorded.
  // If last recorded in a capturing stream.
  std::shared_ptr<::shardgraph::fake_cuda::Capture> capture;
  std::set<int> frontier;
};

struct CUgraph_st {
  std::vector<::shardgraph::fake_cuda::Node> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const ::shardgraph::fake_cuda::GraphProgram> program;
};

namespace shardgraph::fake_cuda {

struct Capture {
  uint64_t id;
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  bool invalid = false;
  bool ended = false;
  std::vector<Node> nodes;
  std::set<cudaStream_t> streams;
};

// All of the double's state. The functions of runtime.cc lock mutex() first.
class World {
 public:
  static World& Get();
  std::mutex& mutex() { return mutex_; }

  void Reset(const Options& options);
  const Options& options() const { return options_; }

  // Reports and errors.
  void Report(const std::string& text);
  std::string TakeReport();
  // A failed kernel spoils the device for good, as on CUDA.
  cudaError_t sticky() const { return sticky_; }
  Counters counters;
  int generation = 0;                    // of the world: the number of Resets
  std::map<std::string, int64_t> calls;  // of the API, by name

  // Streams and events.
  cudaStream_t CreateStream(int device, unsigned flags, int priority);
  void DestroyStream(cudaStream_t stream);
  // The stream of a handle: null and cudaStreamLegacy mean the legacy stream
  // of `device`. Null if there is no such stream.
  cudaStream_t Find(cudaStream_t handle, int device);
  cudaEvent_t CreateEvent(int device, unsigned flags);
  bool DestroyEvent(cudaEvent_t event);
  bool Exists(cudaEvent_t event) const { return events_.count(event) != 0; }
  cudaGraph_t AddGraph(std::vector<Node> nodes);
  bool DestroyGraph(cudaGraph_t graph);
  bool Exists(cudaGraph_t graph) const { return graphs_.count(graph) != 0; }
  cudaGraphExec_t AddExec(const std::vector<Node>& nodes);
  bool DestroyExec(cudaGraphExec_t exec);
  // The name of a collective that is enqueued or runs on the device and was not
  // aborted; empty if there is none.
  std::string PendingCollective(int device) const;
  // Whether a graph holds a collective of the communicator.
  bool InAGraph(const CommunicatorState* communicator) const;
  bool Exists(cudaGraphExec_t exec) const { return execs_.count(exec) != 0; }

  // Enqueueing: in a capturing stream a node, else an operation.
  cudaError_t Enqueue(cudaStream_t stream, std::shared_ptr<const Work> work);
  cudaError_t EnqueueGraph(cudaStream_t stream, cudaGraphExec_t exec);
  cudaError_t RecordEvent(cudaEvent_t event, cudaStream_t stream);
  cudaError_t WaitEvent(cudaStream_t stream, cudaEvent_t event);

  // Waiting.
  // Executes until `stream`, or every stream of the device, is empty.
  cudaError_t Synchronize(cudaStream_t stream);
  cudaError_t SynchronizeDevice(int device);
  cudaError_t Synchronize(const std::shared_ptr<Marker>& marker);
  // One piece of work, if there is any.
  bool Step();

  // Capture.
  cudaError_t BeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
  cudaError_t EndCapture(cudaStream_t stream, cudaGraph_t* graph);
  // For calls that CUDA calls unsafe during capture (allocation, implicit
  // synchronization): 900 if the thread may not, and its captures are spoilt.
  cudaError_t CheckUnsafe();
  // For uses of the legacy stream: 906 if a blocking stream is capturing.
  cudaError_t CheckLegacy(cudaStream_t stream);
  void Invalidate(Capture& capture) { capture.invalid = true; }
  // Invalidates every capture that `stream` (null: any) takes part in.
  cudaError_t RefuseWhileCapturing(cudaStream_t stream);

 private:
  World() = default;
  cudaError_t Push(cudaStream_t stream, Operation operation);
  cudaError_t Synchronize(
      const std::function<bool(const CUstream_st&)>& chosen);
  void Start(Running& running, const Past& past);
  bool StepRunning(Running& running);  // True when it has ended.
  bool StepCollective(Running& running);
  // False for a collective that waits for other ranks.
  static bool CanStep(const Running* running) {
    return running == nullptr || running->meeting == nullptr ||
           running->meeting->arrived == running->meeting->expected ||
           running->work->communicator->aborted;
  }
  // Lets other threads enqueue what this one waits for. False if that is
  // hopeless: nobody is missing, or nothing has come for a long time.
  bool WaitForOtherThreads();
  bool CanStep(const CUstream_st& stream) const;
  void StepStream(CUstream_st& stream);
  void MaybeProgress();
  // The host has waited for all that is in `past`. Or a kernel of a graph has
  // told it by pinned memory (behind a system-wide fence): the double does not
  // see whether the host looks, so what the host enqueues once that kernel has
  // ended counts as ordered behind it, and what it enqueued before does not.
  void HostKnows(const Past& past) {
    host_.Join(past);
    host_snapshot_ = std::make_shared<const Past>(host_);
  }
  void Fail(const BlockResult& result);

  std::mutex mutex_;
  std::condition_variable_any enqueued_;
  Options options_;
  Random random_;
  double eagerness_ = 0;    // How likely the host's calls let work proceed.
  uint64_t reshuffle_ = 1;  // One in so many steps changes all urgencies.
  uint64_t steps_ = 0;
  Serial serial_ = 0;
  uint64_t capture_id_ = 0;
  Past host_;
  std::shared_ptr<const Past> host_snapshot_;
  std::string report_;
  cudaError_t sticky_ = cudaSuccess;
  int next_index_ = 0;
  std::vector<std::unique_ptr<CUstream_st>> streams_;
  std::set<cudaEvent_t> events_;
  std::set<cudaGraph_t> graphs_;
  std::set<cudaGraphExec_t> execs_;
  std::set<std::shared_ptr<Capture>> captures_;
};

// This thread's device and capture mode (cudaThreadExchangeStreamCaptureMode).
// constinit: no wrapper function, of which UBSan says that it returns null.
extern constinit thread_local int t_device;
extern constinit thread_local cudaStreamCaptureMode t_capture_mode;

}  // namespace shardgraph::fake_cuda

#endif  // TESTS_FAKE_CUDA_WORLD_H_
