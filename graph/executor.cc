#include "graph/executor.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/step_link.h"
#include "kernels/check.h"
#include "kernels/host_link.h"
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
    using Moment = TraceRecorder::Moment;
    const Moment begin = traced ? Moment::Now() : Moment();
    absl::Status status = kernel_->Launch(lane);
    if (traced) trace_->Add(lane.index, node_, begin, Moment::Now());
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
  enum class Kind : uint8_t { kWait, kLaunch, kRecord, kMark, kReport } kind;
  int32_t lane;
  int32_t number;          // of an event, or what is marked
  PreparedKernel* kernel;  // kLaunch
};

// What a profiler shows as the phase of the host thread.
class ProfilerRange {
 public:
  ProfilerRange(HostLink* link, const std::string& name) : link_(link) {
    if (link_ != nullptr) link_->BeginRange(name.c_str());
  }
  ~ProfilerRange() {
    if (link_ != nullptr) link_->EndRange();
  }

 private:
  HostLink* const link_;
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
    const ProfilerRange range(HostLinkOf(&backend),
                              plan_.graph.phases[id].name);
    BoundPhase& phase = phases_[id];
    if (id == options_.report_after) ++reports_;
    if (phase.recording != nullptr) {
      if (link_ != nullptr) SG_RETURN_IF_ERROR(link_->Hand(id));
      backend.Replay(phase.recording.get());
      return absl::OkStatus();
    }
    if (link_ != nullptr) SG_RETURN_IF_ERROR(link_->Flush());
    // A replay is ordered behind what was enqueued before; a walk joins the
    // lanes by hand.
    SG_RETURN_IF_ERROR(backend.Synchronize());
    Walk(phase);
    if (!options_.capture) return absl::OkStatus();
    // That was the eager warm-up.
    SG_RETURN_IF_ERROR(backend.Synchronize());
    const absl::Status captured = Capture(id);
    bool all = captured.ok();
    if (options_.agree != nullptr) {
      SG_ASSIGN_OR_RETURN(all, options_.agree(captured.ok()));
    }
    if (all) return absl::OkStatus();
    const std::string& name = plan_.graph.phases[id].name;
    return RunEagerly(
        captured.ok()
            ? absl::StrCat("another rank could not capture phase ", name)
            : absl::StrCat("capturing phase ", name,
                           " failed: ", captured.message()));
  }

  std::string EagerReason() const override { return eager_reason_; }

  absl::Status Synchronize() override {
    const HostSpan span(options_.trace, TraceEvent::kSynchronize);
    return options_.backend->Synchronize();
  }

  absl::Status RunNodes(PhaseId id,
                        absl::FunctionRef<void(NodeId node)> after) override {
    Backend& backend = *options_.backend;
    SG_RETURN_IF_ERROR(backend.Synchronize());
    if (link_ != nullptr) SG_RETURN_IF_ERROR(link_->Flush());
    const PhaseSchedule& schedule = plan_.schedules[id];
    for (size_t i = 0; i < schedule.order.size(); ++i) {
      const NodeId node = schedule.order[i];
      backend.Launch(schedule.lanes[i], kernels_[node].get());
      SG_RETURN_IF_ERROR(backend.Synchronize());
      after(node);
    }
    return absl::OkStatus();
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
    void* const device = Address(buffer, offset);
    if (link_ != nullptr) {
      SG_RETURN_IF_ERROR(link_->Flush());
      link_->Written(device, host, bytes);
    }
    return options_.backend->CopyToDevice(device, host, bytes);
  }

  absl::Status ReadBuffer(BufferId buffer, int64_t offset, void* host,
                          int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckRange(buffer, offset, bytes));
    if (link_ != nullptr) SG_RETURN_IF_ERROR(link_->Flush());
    return options_.backend->CopyToHost(host, Address(buffer, offset), bytes);
  }

  const char* View(BufferId buffer, int64_t offset, int64_t bytes) override {
    const bool there = options_.backend->on_host() &&
                       CheckRange(buffer, offset, bytes).ok() &&
                       options_.backend->Synchronize().ok();
    return there ? static_cast<const char*>(Address(buffer, offset)) : nullptr;
  }

  absl::Status Stage(BufferId buffer, int64_t offset, const void* host,
                     int64_t bytes) override {
    if (link_ == nullptr) return WriteBuffer(buffer, offset, host, bytes);
    SG_RETURN_IF_ERROR(CheckRange(buffer, offset, bytes));
    link_->Stage(Address(buffer, offset), host, bytes);
    return absl::OkStatus();
  }

  absl::Status StageValue(ValueId id, const void* host,
                          int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckContiguous(id, bytes));
    const Value& value = plan_.graph.values[id];
    return Stage(value.buffer, value.offset, host, bytes);
  }

  absl::Status Ahead(PhaseId id,
                     absl::FunctionRef<absl::Status()> stage) override {
    if (phases_[id].recording == nullptr || link_ == nullptr)
      return absl::OkStatus();
    link_->BeginAhead();
    const absl::Status staged = stage();
    const absl::Status ended = link_->EndAhead(id, staged.ok());
    return staged.ok() ? ended : staged;
  }

  absl::Status ReadReport(uint64_t number, void* host, int64_t bytes) override {
    SG_CHECK(options_.report != kNone && number < reports_);
    if (link_ != nullptr) return link_->ReadReport(number, host, bytes);
    if (number + 1 != reports_)
      return absl::OutOfRangeError(absl::StrCat(
          "report ", number, " was overwritten by report ", reports_ - 1));
    SG_RETURN_IF_ERROR(Synchronize());
    return ReadBuffer(options_.report, 0, host, bytes);
  }
  uint64_t reports() const override { return reports_; }

  void* arena() const override { return arena_; }
  int64_t arena_bytes() const override { return plan_.memory.arena_bytes; }

  std::string Progress() const override {
    std::string text;
    for (size_t lane = 0; lane < progress_.size(); ++lane) {
      // A device marks units and collectives, not every node.
      const int32_t node =
          link_ != nullptr
              ? static_cast<int32_t>(link_->mark(static_cast<int>(lane))) - 1
              : progress_[lane].node.load(std::memory_order_relaxed);
      absl::StrAppend(
          &text, "lane ", lane, ": ",
          link_ != nullptr && node != kIdle ? "at or behind " : "",
          node == kIdle ? "waits or is done" : Place(plan_.graph, node), "\n");
      if (link_ == nullptr) AppendEnded(progress_[lane], &text);
    }
    return text;
  }

  int64_t Advance() const override {
    int64_t sum = 0;
    for (const LaneProgress& lane : progress_)
      sum += lane.advance.load(std::memory_order_relaxed);
    for (int lane = 0; link_ != nullptr && lane < plan_.num_lanes; ++lane)
      sum += link_->mark(lane);
    return sum;
  }

  void Abort(const absl::Status& reason) override {
    for (auto& [key, communicator] : communicators_) {
      if (communicator != nullptr) communicator->Abort(reason);  // was made
    }
  }

 private:
  // From now on everything runs eagerly; what ran so far stands.
  absl::Status RunEagerly(const std::string& reason) {
    SG_RETURN_IF_ERROR(options_.backend->Synchronize());
    options_.capture = false;
    eager_reason_ = reason;
    for (size_t p = 0; p < phases_.size(); ++p) {
      phases_[p].recording.reset();
      if (link_ != nullptr) link_->Forget(static_cast<int>(p));
    }
    return absl::OkStatus();
  }

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
          backend.Wait(step.lane, step.number);
          break;
        case Step::Kind::kLaunch:
          backend.Launch(step.lane, step.kernel);
          break;
        case Step::Kind::kRecord:
          backend.Record(step.lane, step.number);
          break;
        case Step::Kind::kMark:
          link_->Mark(step.lane, step.number);
          break;
        case Step::Kind::kReport:
          link_->Append(step.lane, Address(options_.report, 0));
          break;
      }
    }
  }

  // Records the phase, which has just run.
  absl::Status Capture(PhaseId id) {
    Backend& backend = *options_.backend;
    if (link_ != nullptr) SG_RETURN_IF_ERROR(link_->BeginRecording(id));
    SG_RETURN_IF_ERROR(backend.BeginCapture());
    if (link_ != nullptr) link_->RecordTakes(id);
    Walk(phases_[id]);
    SG_ASSIGN_OR_RETURN(phases_[id].recording, backend.EndCapture());
    return absl::OkStatus();
  }

  absl::Status BindPhase(PhaseId id, int32_t* events);
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
  std::unique_ptr<StepLink> link_;  // null: lanes are host threads
  uint64_t reports_ = 0;
  std::string eager_reason_;
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

absl::Status ExecutorImpl::BindPhase(PhaseId id, int32_t* events) {
  const Graph& graph = plan_.graph;
  const PhaseSchedule& schedule = plan_.schedules[id];
  std::vector<Step>& steps = phases_[id].steps;
  std::map<NodeId, int32_t> event_of;  // of nodes that somebody waits for
  for (const Edge& edge : schedule.edges) {
    if (event_of.emplace(edge.from, *events).second) ++*events;
  }
  std::map<int32_t, int32_t> unit_of;  // by lane: that of its newest node
  auto edge = schedule.edges.begin();  // sorted by position of `to`
  for (size_t i = 0; i < schedule.order.size(); ++i) {
    const NodeId node = schedule.order[i];
    const int32_t lane = schedule.lanes[i];
    const int32_t unit = graph.nodes[node].unit;
    const auto [newest, first] = unit_of.emplace(lane, unit);
    if (link_ != nullptr && (first || newest->second != unit ||
                             IsCollective(*graph.nodes[node].op)))
      steps.push_back({Step::Kind::kMark, lane, node + 1, nullptr});
    newest->second = unit;
    for (; edge != schedule.edges.end() && edge->to == node; ++edge) {
      steps.push_back(
          {Step::Kind::kWait, lane, event_of.at(edge->from), nullptr});
    }
    SG_RETURN_IF_ERROR(BindNode(node, lane));
    steps.push_back({Step::Kind::kLaunch, lane, kNone, kernels_[node].get()});
    if (const auto event = event_of.find(node); event != event_of.end())
      steps.push_back({Step::Kind::kRecord, lane, event->second, nullptr});
  }
  SG_CHECK(edge == schedule.edges.end())
      << "edges are not sorted by the total order";
  if (link_ == nullptr) return absl::OkStatus();
  for (const auto& [lane, unit] : unit_of)
    steps.push_back({Step::Kind::kMark, lane, 0, nullptr});
  if (id != options_.report_after) return absl::OkStatus();
  for (const auto& [lane, unit] : unit_of) {
    if (lane == 0) continue;
    steps.push_back({Step::Kind::kRecord, lane, *events, nullptr});
    steps.push_back({Step::Kind::kWait, 0, (*events)++, nullptr});
  }
  steps.push_back({Step::Kind::kReport, 0, kNone, nullptr});
  return absl::OkStatus();
}

absl::Status ExecutorImpl::Bind() {
  Backend& backend = *options_.backend;
  SG_ASSIGN_OR_RETURN(arena_, backend.Allocate(plan_.memory.arena_bytes));
  if (HostLinkOf(&backend) != nullptr) {
    SG_ASSIGN_OR_RETURN(
        link_,
        StepLink::Create(&backend, plan_.num_lanes,
                         static_cast<int>(plan_.schedules.size()),
                         options_.report == kNone
                             ? 0
                             : plan_.graph.buffers[options_.report].bytes));
  }

  kernels_.resize(plan_.graph.nodes.size());
  phases_.resize(plan_.schedules.size());
  int32_t events = 0;
  for (size_t p = 0; p < plan_.schedules.size(); ++p)
    SG_RETURN_IF_ERROR(BindPhase(static_cast<PhaseId>(p), &events));
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
