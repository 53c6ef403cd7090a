#include "graph/executor.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/internal_error.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr int32_t kIdle = -1;

// Whether the op moves data between ranks: it needs a communicator.
bool IsCollective(const OpDef& op) {
  return op.lane == LaneKind::kGather || op.lane == LaneKind::kReduce;
}

// Index of a world rank within its group of this kind (graph.h: Group).
int32_t IndexIn(const Group& group, int32_t rank) {
  return rank / group.stride % group.size;
}

std::vector<int> MembersOf(const Group& group, int32_t rank) {
  std::vector<int> members(group.size);
  const int32_t first = rank - IndexIn(group, rank) * group.stride;
  for (int32_t k = 0; k < group.size; ++k) {
    members[k] = first + k * group.stride;
  }
  return members;
}

// Phase, unit and node.
std::string Place(const Graph& graph, NodeId id) {
  const Node& node = graph.nodes[id];
  return absl::StrCat("phase ", graph.phases[node.phase].name, ", unit \"",
                      node.unit == kNone ? "" : graph.units[node.unit].name,
                      "\", ", PrintNode(graph, id));
}

// What a lane of the plan stands at: written by the lane, read by the watchdog.
struct LaneProgress {
  static constexpr int kEnded = 8;

  alignas(64) std::atomic<int32_t> node{kIdle};
  std::atomic<int64_t> advance{0};  // kernels begun and ended
  // The nodes that ended last, a ring; `count` have ended.
  std::atomic<int32_t> ended[kEnded];
  std::atomic<int64_t> count{0};

  // One thread writes.
  void Begin(int32_t value) {
    node.store(value, std::memory_order_relaxed);
    Step(&advance);
  }
  void End() {
    const int64_t n = count.load(std::memory_order_relaxed);
    ended[n % kEnded].store(node.load(std::memory_order_relaxed),
                            std::memory_order_relaxed);
    Step(&count);
    node.store(kIdle, std::memory_order_relaxed);
    Step(&advance);
  }

 private:
  static void Step(std::atomic<int64_t>* counter) {
    counter->store(counter->load(std::memory_order_relaxed) + 1,
                   std::memory_order_relaxed);
  }
};

// A kernel that reports where its lane stands and, when it fails, which node
// failed.
class TrackedKernel final : public PreparedKernel {
 public:
  TrackedKernel(std::unique_ptr<PreparedKernel> kernel, const Graph* graph,
                NodeId node, LaneProgress* progress, TraceRecorder* trace,
                const std::function<absl::Status(NodeId)>* after)
      : kernel_(std::move(kernel)),
        graph_(graph),
        node_(node),
        progress_(progress),
        trace_(trace),
        after_(after) {}

  absl::Status Launch(Lane& lane) override {
    progress_->Begin(node_);
    const bool traced = trace_ != nullptr && trace_->active();
    const int64_t begin = traced ? TraceRecorder::Now() : 0;
    absl::Status status = kernel_->Launch(lane);
    if (traced) trace_->Add(lane.index, node_, begin, TraceRecorder::Now());
    if (status.ok() && *after_) status = (*after_)(node_);
    if (status.ok()) {
      progress_->End();
      return status;
    }
    status = AsInternal(status);
    return absl::Status(status.code(), absl::StrCat(status.message(), "; at ",
                                                    Place(*graph_, node_)));
  }

 private:
  std::unique_ptr<PreparedKernel> kernel_;
  const Graph* graph_;
  NodeId node_;
  LaneProgress* progress_;
  TraceRecorder* trace_;
  const std::function<absl::Status(NodeId)>* after_;
};

// What the host thread does meanwhile, as an event of the trace.
class HostSpan {
 public:
  HostSpan(TraceRecorder* trace, int32_t id)
      : trace_(trace != nullptr && trace->active() ? trace : nullptr),
        id_(id),
        begin_(trace_ != nullptr ? TraceRecorder::Now() : 0) {}
  ~HostSpan() {
    if (trace_ != nullptr) trace_->AddHost(id_, begin_, TraceRecorder::Now());
  }

 private:
  TraceRecorder* const trace_;
  const int32_t id_;
  const int64_t begin_;
};

// One entry of the walk over a phase.
struct Step {
  enum class Kind : uint8_t { kWait, kLaunch, kRecord } kind;
  int32_t lane;
  int32_t event;           // kWait, kRecord
  PreparedKernel* kernel;  // kLaunch
};

struct BoundPhase {
  std::vector<Step> steps;
  std::unique_ptr<Backend::Recording> recording;
};

class ExecutorImpl final : public Executor {
 public:
  ExecutorImpl(const StepPlan& plan, const ExecutorOptions& options)
      : plan_(plan), options_(options), progress_(plan.num_lanes) {
    if (options_.after_node) options_.capture = false;
    SG_CHECK(options_.trace == nullptr ||
             options_.trace->num_lanes() == plan.num_lanes);
  }

  ~ExecutorImpl() override {
    options_.backend->Synchronize().IgnoreError();
    // Recordings go before the communicators that they refer to.
    for (BoundPhase& phase : phases_) phase.recording.reset();
  }

  absl::Status Bind();

  absl::Status Enqueue(PhaseId id) override {
    const HostSpan span(options_.trace, id);
    Backend& backend = *options_.backend;
    BoundPhase& phase = phases_[id];
    if (phase.recording != nullptr) {
      backend.Replay(phase.recording.get());
      return absl::OkStatus();
    }
    // A replay is ordered behind what was enqueued before; a walk joins the
    // lanes by hand.
    SG_RETURN_IF_ERROR(backend.Synchronize());
    Walk(phase);
    if (!options_.capture) return absl::OkStatus();
    // That was the eager warm-up.
    SG_RETURN_IF_ERROR(backend.Synchronize());
    SG_RETURN_IF_ERROR(AsInternal(backend.BeginCapture()));
    Walk(phase);
    SG_ASSIGN_OR_RETURN(phase.recording, backend.EndCapture());
    return absl::OkStatus();
  }

  absl::Status Synchronize() override {
    const HostSpan span(options_.trace, TraceEvent::kSynchronize);
    return options_.backend->Synchronize();
  }

  absl::Status Write(ValueId id, const void* host, int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckContiguous(id, bytes));
    const Value& value = plan_.graph.values[id];
    return WriteBuffer(value.buffer, value.offset, host, bytes);
  }

  absl::Status Read(ValueId id, void* host, int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckContiguous(id, bytes));
    const Value& value = plan_.graph.values[id];
    return ReadBuffer(value.buffer, value.offset, host, bytes);
  }

  absl::Status WriteBuffer(BufferId buffer, int64_t offset, const void* host,
                           int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckRange(buffer, offset, bytes));
    return options_.backend->CopyToDevice(Address(buffer, offset), host, bytes);
  }

  absl::Status ReadBuffer(BufferId buffer, int64_t offset, void* host,
                          int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckRange(buffer, offset, bytes));
    return options_.backend->CopyToHost(host, Address(buffer, offset), bytes);
  }

  void* arena() const override { return arena_; }
  int64_t arena_bytes() const override { return plan_.memory.arena_bytes; }

  std::string Progress() const override {
    std::string text;
    for (size_t lane = 0; lane < progress_.size(); ++lane) {
      const int32_t node = progress_[lane].node.load(std::memory_order_relaxed);
      absl::StrAppend(
          &text, "lane ", lane, ": ",
          node == kIdle ? "waits or is done" : Place(plan_.graph, node), "\n");
      AppendEnded(progress_[lane], &text);
    }
    return text;
  }

  int64_t Advance() const override {
    int64_t sum = 0;
    for (const LaneProgress& lane : progress_)
      sum += lane.advance.load(std::memory_order_relaxed);
    return sum;
  }

  void Abort(const absl::Status& reason) override {
    for (auto& [key, communicator] : communicators_) {
      if (communicator != nullptr) communicator->Abort(reason);  // was made
    }
  }

 private:
  char* Address(BufferId buffer, int64_t offset) const {
    return static_cast<char*>(arena_) + plan_.memory.offsets[buffer] + offset;
  }

  Tensor TensorOf(ValueId id) const {
    const Value& value = plan_.graph.values[id];
    return Tensor{Address(value.buffer, value.offset), value.type};
  }

  absl::Status CheckContiguous(ValueId id, int64_t bytes) const {
    const TensorType& type = plan_.graph.values[id].type;
    if (type.contiguous() && type.span_bytes() == bytes)
      return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the value is ", type.ToString(),
                                            " with ", type.span_bytes(),
                                            " bytes, not ", bytes));
  }

  absl::Status CheckRange(BufferId buffer, int64_t offset,
                          int64_t bytes) const {
    const Buffer& b = plan_.graph.buffers[buffer];
    if (offset >= 0 && bytes >= 0 && offset + bytes <= b.bytes)
      return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("bytes [", offset, ", ", offset + bytes,
                     ") leave the buffer ", b.name, " of ", b.bytes, " bytes"));
  }

  // "  before: layers.1 mlp/matmul, ...", the last first.
  void AppendEnded(const LaneProgress& lane, std::string* text) const {
    const int64_t count = lane.count.load(std::memory_order_relaxed);
    if (count == 0) return;
    absl::StrAppend(text, "  ended before it, the last first: ");
    for (int64_t i = count - 1;
         i >= std::max<int64_t>(0, count - LaneProgress::kEnded); --i) {
      const Node& node =
          plan_.graph.nodes[lane.ended[i % LaneProgress::kEnded].load(
              std::memory_order_relaxed)];
      absl::StrAppend(
          text, i == count - 1 ? "" : ", ", node.op->name, " of \"",
          node.unit == kNone ? "" : plan_.graph.units[node.unit].name, "\"");
    }
    absl::StrAppend(text, "\n");
  }

  void Walk(const BoundPhase& phase) {
    Backend& backend = *options_.backend;
    for (const Step& step : phase.steps) {
      switch (step.kind) {
        case Step::Kind::kWait:
          backend.Wait(step.lane, step.event);
          break;
        case Step::Kind::kLaunch:
          backend.Launch(step.lane, step.kernel);
          break;
        case Step::Kind::kRecord:
          backend.Record(step.lane, step.event);
          break;
      }
    }
  }

  absl::Status BindNode(NodeId id, int lane);
  absl::StatusOr<Communicator*> CommunicatorOf(const Group& group, int lane);

  const StepPlan& plan_;
  ExecutorOptions options_;
  void* arena_ = nullptr;
  std::vector<std::unique_ptr<PreparedKernel>> kernels_;  // by NodeId
  // Go before the kernels: these may free device memory, which would wait for a
  // collective that no other rank joins.
  std::map<std::pair<std::string, int>, std::unique_ptr<Communicator>>
      communicators_;
  std::vector<BoundPhase> phases_;
  std::deque<LaneProgress> progress_;
};

absl::StatusOr<Communicator*> ExecutorImpl::CommunicatorOf(const Group& group,
                                                           int lane) {
  auto& communicator = communicators_[{group.name, lane}];
  if (communicator == nullptr) {
    if (options_.communicators == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("the plan has collectives over the group \"", group.name,
                       "\", but there are no communicators"));
    }
    SG_ASSIGN_OR_RETURN(
        communicator,
        options_.communicators->Create(
            group.name, MembersOf(group, options_.communicators->rank()),
            lane));
  }
  return communicator.get();
}

absl::Status ExecutorImpl::BindNode(NodeId id, int lane) {
  const Graph& graph = plan_.graph;
  const Node& node = graph.nodes[id];
  std::vector<Tensor> operands, results;
  for (ValueId value : node.operands) operands.push_back(TensorOf(value));
  for (ValueId value : node.results) results.push_back(TensorOf(value));

  KernelContext context;
  context.op = node.op;
  context.attributes = &node.attributes;
  context.operands = operands;
  context.results = results;
  if (node.workspace != kNone) {
    context.workspace =
        Tensor{Address(node.workspace, 0),
               TensorType(DType::kU8, {graph.buffers[node.workspace].bytes})};
  }
  if (const std::string name = node.attributes.String(kGroupAttribute);
      !name.empty()) {
    const Group* group = graph.FindGroup(name);
    SG_CHECK(group != nullptr) << "unknown group " << name;
    const int rank =
        options_.communicators == nullptr ? 0 : options_.communicators->rank();
    context.rank = IndexIn(*group, rank);
    context.group_size = group->size;
    if (IsCollective(*node.op)) {
      SG_ASSIGN_OR_RETURN(context.communicator, CommunicatorOf(*group, lane));
    }
  }
  const auto annotate = [&](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat(status.message(), "; binding ", PrintNode(graph, id)));
  };
  const absl::StatusOr<const KernelDef*> kernel =
      options_.backend->kernels().Find(node.op->name, node.attributes,
                                       graph.OperandTypes(node),
                                       graph.ResultTypes(node));
  if (!kernel.ok()) return annotate(kernel.status());
  absl::StatusOr<std::unique_ptr<PreparedKernel>> prepared =
      (*kernel)->prepare(context);
  if (!prepared.ok()) return annotate(prepared.status());
  kernels_[id] = std::make_unique<TrackedKernel>(
      *std::move(prepared), &graph, id, &progress_[lane], options_.trace,
      &options_.after_node);
  return absl::OkStatus();
}

absl::Status ExecutorImpl::Bind() {
  Backend& backend = *options_.backend;
  SG_ASSIGN_OR_RETURN(arena_, backend.Allocate(plan_.memory.arena_bytes));

  kernels_.resize(plan_.graph.nodes.size());
  phases_.resize(plan_.schedules.size());
  int32_t events = 0;
  for (size_t p = 0; p < plan_.schedules.size(); ++p) {
    const PhaseSchedule& schedule = plan_.schedules[p];
    std::map<NodeId, int32_t> event_of;  // of nodes that somebody waits for
    for (const Edge& edge : schedule.edges) {
      if (event_of.emplace(edge.from, events).second) ++events;
    }
    auto edge = schedule.edges.begin();  // sorted by position of `to`
    for (size_t i = 0; i < schedule.order.size(); ++i) {
      const NodeId node = schedule.order[i];
      const int32_t lane = schedule.lanes[i];
      for (; edge != schedule.edges.end() && edge->to == node; ++edge) {
        phases_[p].steps.push_back(
            {Step::Kind::kWait, lane, event_of.at(edge->from), nullptr});
      }
      SG_RETURN_IF_ERROR(BindNode(node, lane));
      phases_[p].steps.push_back(
          {Step::Kind::kLaunch, lane, kNone, kernels_[node].get()});
      if (const auto event = event_of.find(node); event != event_of.end()) {
        phases_[p].steps.push_back(
            {Step::Kind::kRecord, lane, event->second, nullptr});
      }
    }
    SG_CHECK(edge == schedule.edges.end())
        << "edges are not sorted by the total order";
  }
  return backend.Prepare(plan_.num_lanes, events);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(
    const StepPlan& plan, const ExecutorOptions& options) {
  SG_CHECK(options.backend != nullptr) << "an executor needs a backend";
  auto executor = std::make_unique<ExecutorImpl>(plan, options);
  const absl::Status bound = AsInternal(executor->Bind());
  if (!bound.ok()) {
    executor->Abort(bound);  // the others' ranks do not close them with us
    return bound;
  }
  return executor;
}

}  // namespace shardgraph
