#include "tests/fake_cuda/world.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "tests/fake_cuda/checker.h"
#include "tests/fake_cuda/device.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/unwatched.h"

namespace shardgraph::fake_cuda {

constinit thread_local int t_device = 0;
constinit thread_local cudaStreamCaptureMode t_capture_mode =
    cudaStreamCaptureModeGlobal;

World& World::Get() {
  static World* const world = [] {
    auto* w = new World;
    w->Reset(Options());
    return w;
  }();
  return *world;
}

void World::Reset(const Options& options) {
  // What the old world still holds is a leak.
  if (const int n = Memory::Get().CountLive(); n > 0) {
    Report("leak: " + std::to_string(n) + " allocations");
  }
  int user_streams = 0;
  for (const auto& s : streams_) user_streams += !s->legacy;
  if (user_streams > 0) {
    Report("leak: " + std::to_string(user_streams) + " streams");
  }
  for (auto [count, what] : {std::pair{events_.size(), "events"},
                             {graphs_.size(), "graphs"},
                             {execs_.size(), "executable graphs"}}) {
    if (count > 0) Report("leak: " + std::to_string(count) + " " + what);
  }
  streams_.clear();
  for (cudaEvent_t e : events_) delete e;
  for (cudaGraph_t g : graphs_) delete g;
  for (cudaGraphExec_t e : execs_) delete e;
  events_.clear();
  graphs_.clear();
  execs_.clear();
  captures_.clear();
  Memory::Get().Reset();
  options_ = options;
  counters = Counters();
  calls.clear();
  ++generation;
  sticky_ = cudaSuccess;
  serial_ = 0;
  next_index_ = 0;
  host_ = Past();
  host_snapshot_ = std::make_shared<const Past>();
  t_device = 0;
  checker::Reset(options.check_accesses,
                 [](const std::string& text) { World::Get().Report(text); });
  for (int d = 0; d < options.devices; ++d) {
    CreateStream(d, cudaStreamDefault, 0);
    streams_.back()->legacy = true;
  }
  random_ = Random(options.seed);
  if (options.seed == 0) {
    eagerness_ = 0;
    reshuffle_ = 1;
    return;
  }
  // The extremes are where the bugs are: a device far ahead of the host or far
  // behind, one stream far ahead of another.
  const double eagerness[] = {0, 0.2, 0.9, 1};
  eagerness_ = eagerness[random_.Below(4)];
  const uint64_t reshuffle[] = {1, 4, 32, 1024};
  reshuffle_ = reshuffle[random_.Below(4)];
}

void World::Report(const std::string& text) {
  report_ += text;
  report_ += '\n';
}

std::string World::TakeReport() { return std::exchange(report_, ""); }

void World::Fail(const BlockResult& result) {
  if (!result.report.empty()) Report(result.report);
  if (result.error != cudaSuccess) sticky_ = result.error;
}

cudaStream_t World::CreateStream(int device, unsigned flags, int priority) {
  auto stream = std::make_unique<CUstream_st>();
  stream->device = device;
  stream->index = next_index_++;
  stream->flags = flags;
  stream->priority = priority;
  stream->urgency = options_.seed == 0 ? 0 : random_.Next();
  streams_.push_back(std::move(stream));
  return streams_.back().get();
}

void World::DestroyStream(cudaStream_t stream) {
  // CUDA finishes what is enqueued after the call has returned; here, before.
  Synchronize(stream);
  std::erase_if(streams_, [&](const auto& s) { return s.get() == stream; });
}

cudaStream_t World::Find(cudaStream_t handle, int device) {
  if (handle == nullptr || handle == cudaStreamLegacy) {
    return streams_[static_cast<size_t>(device)].get();
  }
  for (const auto& s : streams_) {
    if (s.get() == handle) return handle;
  }
  return nullptr;
}

cudaEvent_t World::CreateEvent(int device, unsigned flags) {
  auto* event = new CUevent_st{device, flags, nullptr, nullptr, {}};
  events_.insert(event);
  return event;
}
bool World::DestroyEvent(cudaEvent_t event) {
  if (events_.erase(event) == 0) return false;
  delete event;
  return true;
}
cudaGraph_t World::AddGraph(std::vector<Node> nodes) {
  return *graphs_.insert(new CUgraph_st{std::move(nodes)}).first;
}
bool World::DestroyGraph(cudaGraph_t graph) {
  if (graphs_.erase(graph) == 0) return false;
  delete graph;
  return true;
}
cudaGraphExec_t World::AddExec(const std::vector<Node>& nodes) {
  auto program = std::make_shared<GraphProgram>();
  program->nodes = nodes;
  program->before.resize(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (int a : nodes[i].after) {
      program->before[static_cast<size_t>(a)].push_back(static_cast<int>(i));
    }
  }
  return *execs_.insert(new CUgraphExec_st{std::move(program)}).first;
}
bool World::DestroyExec(cudaGraphExec_t exec) {
  if (execs_.erase(exec) == 0) return false;
  delete exec;
  return true;
}

std::string World::PendingCollective(int device) const {
  const auto pending = [](const std::shared_ptr<const Work>& work) {
    return work != nullptr && work->communicator != nullptr &&
           !work->communicator->aborted;
  };
  for (const auto& stream : streams_) {
    if (stream->device != device) continue;
    for (const Operation& operation : stream->queue) {
      if (pending(operation.work)) return operation.work->name;
      if (operation.graph == nullptr) continue;
      for (const Node& node : operation.graph->nodes) {
        if (pending(node.work)) return node.work->name;
      }
    }
  }
  return "";
}

bool World::InAGraph(const CommunicatorState* communicator) const {
  return std::any_of(execs_.begin(), execs_.end(), [&](cudaGraphExec_t exec) {
    const std::vector<Node>& nodes = exec->program->nodes;
    return std::any_of(nodes.begin(), nodes.end(), [&](const Node& node) {
      return node.work->communicator.get() == communicator;
    });
  });
}

// Enqueueing.

cudaError_t World::Enqueue(cudaStream_t stream,
                           std::shared_ptr<const Work> work) {
  if (sticky_ != cudaSuccess) return sticky_;
  if (stream->capture != nullptr) {
    Capture& capture = *stream->capture;
    if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
    capture.nodes.push_back({std::move(work),
                             {stream->frontier.begin(), stream->frontier.end()},
                             stream->priority});
    stream->frontier = {static_cast<int>(capture.nodes.size()) - 1};
    return cudaSuccess;
  }
  if (cudaError_t error = CheckLegacy(stream); error != cudaSuccess) {
    return error;
  }
  return Push(stream,
              {Operation::kWork, std::move(work), nullptr, nullptr, nullptr});
}

cudaError_t World::EnqueueGraph(cudaStream_t stream, cudaGraphExec_t exec) {
  if (sticky_ != cudaSuccess) return sticky_;
  if (stream->capture != nullptr) {  // A child graph; not needed so far.
    Invalidate(*stream->capture);
    return cudaErrorStreamCaptureUnsupported;
  }
  if (cudaError_t error = CheckLegacy(stream); error != cudaSuccess) {
    return error;
  }
  ++counters.graph_launches;
  return Push(stream,
              {Operation::kGraph, nullptr, nullptr, exec->program, nullptr});
}

cudaError_t World::Push(cudaStream_t stream, Operation operation) {
  operation.host = host_snapshot_;
  // The legacy stream waits for all blocking streams of its device, and they
  // for it.
  auto blocking = [&](const CUstream_st& s) {
    return s.device == stream->device && !s.legacy &&
           !(s.flags & cudaStreamNonBlocking);
  };
  auto edge = [&](CUstream_st& from, CUstream_st& to) {
    if (from.queue.empty()) {
      to.past.Join(from.past);
      return;
    }
    auto marker = std::make_shared<Marker>();
    from.queue.push_back(
        {Operation::kRecord, nullptr, marker, nullptr, host_snapshot_});
    to.queue.push_back(
        {Operation::kWait, nullptr, marker, nullptr, host_snapshot_});
  };
  if (stream->legacy) {
    for (const auto& s : streams_) {
      if (blocking(*s)) edge(*s, *stream);
    }
  } else if (blocking(*stream)) {
    edge(*Find(nullptr, stream->device), *stream);
  }
  stream->queue.push_back(std::move(operation));
  enqueued_.notify_all();
  MaybeProgress();
  return cudaSuccess;
}

cudaError_t World::RecordEvent(cudaEvent_t event, cudaStream_t stream) {
  if (sticky_ != cudaSuccess) return sticky_;
  if (stream->capture != nullptr) {
    if (stream->capture->invalid) return cudaErrorStreamCaptureInvalidated;
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    event->marker = nullptr;
    return cudaSuccess;
  }
  if (cudaError_t error = CheckLegacy(stream); error != cudaSuccess) {
    return error;
  }
  event->capture = nullptr;
  event->marker = std::make_shared<Marker>();
  return Push(stream,
              {Operation::kRecord, nullptr, event->marker, nullptr, nullptr});
}

cudaError_t World::WaitEvent(cudaStream_t stream, cudaEvent_t event) {
  if (sticky_ != cudaSuccess) return sticky_;
  Capture* from = event->capture.get();
  Capture* to = stream->capture.get();
  if (to != nullptr && to->invalid) return cudaErrorStreamCaptureInvalidated;
  if (from != nullptr) {
    if (from->ended) return cudaErrorCapturedEvent;
    if (from->invalid) return cudaErrorInvalidValue;
    if (to == nullptr) {
      if (stream->legacy) {
        Invalidate(*from);
        return cudaErrorStreamCaptureImplicit;
      }
      stream->capture = event->capture;  // The stream joins the capture.
      stream->frontier = event->frontier;
      from->streams.insert(stream);
      return cudaSuccess;
    }
    if (to != from) {
      Invalidate(*from);
      Invalidate(*to);
      return cudaErrorStreamCaptureMerge;
    }
    stream->frontier.insert(event->frontier.begin(), event->frontier.end());
    return cudaSuccess;
  }
  if (event->marker == nullptr) return cudaSuccess;  // Never recorded: nothing.
  if (to != nullptr) {
    Invalidate(*to);
    return cudaErrorStreamCaptureIsolation;
  }
  if (cudaError_t error = CheckLegacy(stream); error != cudaSuccess) {
    return error;
  }
  return Push(stream,
              {Operation::kWait, nullptr, event->marker, nullptr, nullptr});
}

// Executing.

bool World::CanStep(const CUstream_st& stream) const {
  if (stream.queue.empty()) return false;
  const Operation& head = stream.queue.front();
  if (head.kind == Operation::kWait) return head.marker->done;
  if (head.kind == Operation::kWork) return CanStep(stream.running.get());
  if (head.kind == Operation::kGraph && stream.graph != nullptr) {
    const CUstream_st::GraphRun& run = *stream.graph;
    return run.left == 0 ||
           std::any_of(run.ready.begin(), run.ready.end(), [&](int node) {
             const auto it = run.running.find(node);
             return it == run.running.end() || CanStep(it->second.get());
           });
  }
  return true;
}

void World::Start(Running& running, const Past& past) {
  running.serial = ++serial_;
  running.past = past;
  if (running.work->kernel.has_value()) {
    const dim3& grid = running.work->kernel->grid;
    running.blocks = grid.x * grid.y * grid.z;
    // Blocks in the order offset, offset + stride, ... : a permutation.
    if (options_.seed != 0) {
      running.offset = static_cast<uint32_t>(random_.Below(running.blocks));
      do {
        running.stride =
            static_cast<uint32_t>(random_.Below(running.blocks)) + 1;
      } while (std::gcd(running.stride, running.blocks) != 1);
    }
    ++counters.kernels;
    counters.threads +=
        static_cast<int64_t>(running.blocks) * running.work->kernel->block.x *
        running.work->kernel->block.y * running.work->kernel->block.z;
  }
}

bool World::StepCollective(Running& running) {
  if (running.work->communicator->aborted) return true;
  if (running.meeting == nullptr) {
    running.meeting = running.work->arrive();
    running.meeting->past.Join(running.past);
    running.meeting->past.Add(running.serial);
    if (!CanStep(&running)) return false;
  }
  Meeting& meeting = *running.meeting;
  running.past.Join(meeting.past);
  checker::BeginOperation(running.serial, running.work->name, &running.past);
  bool valid = true;
  for (const Work::Range& r : running.work->reads) {
    valid = checker::Read(r.begin, r.bytes) && valid;
  }
  for (const Work::Range& r : running.work->writes) {
    valid = checker::Write(r.begin, r.bytes) && valid;
  }
  checker::EndOperation();
  if (!valid) sticky_ = cudaErrorIllegalAddress;
  if (valid && !meeting.exchanged) {
    meeting.exchanged = true;
    const std::string problem = meeting.exchange();
    if (!problem.empty()) {
      Report(problem);
      sticky_ = cudaErrorUnknown;
    }
  }
  return true;
}

bool World::StepRunning(Running& running) {
  const Unwatched unwatched;
  const Work& work = *running.work;
  if (work.arrive != nullptr) return StepCollective(running);
  if (options_.protect_device_memory) Memory::Get().Protect(false);
  checker::BeginOperation(running.serial, work.name, &running.past);
  bool ended = true;
  if (work.kernel.has_value()) {
    // All blocks at once, or some and then perhaps another stream's.
    uint32_t count = running.blocks - running.next_block;
    if (options_.seed != 0 && count > 1 && random_.Below(2) == 0) {
      count = static_cast<uint32_t>(random_.Below(count)) + 1;
    }
    for (; count > 0 && sticky_ == cudaSuccess; --count) {
      const auto i = static_cast<uint64_t>(running.next_block++);
      const auto block = static_cast<uint32_t>(
          (running.offset + i * running.stride) % running.blocks);
      const BlockResult result = RunBlock(
          *work.kernel, block, &running.checked, options_.poison_shared_memory,
          options_.seed == 0 ? nullptr : &random_);
      running.tells_host |= result.tells_host;
      Fail(result);
    }
    ended = running.next_block == running.blocks || sticky_ != cudaSuccess;
  } else {
    bool valid = true;
    for (const Work::Range& r : work.reads) {
      valid = checker::Read(r.begin, r.bytes, work.computes) && valid;
    }
    for (const Work::Range& r : work.writes) {
      valid = checker::Write(r.begin, r.bytes) && valid;
    }
    checker::EndOperation();
    if (!valid) {
      sticky_ = cudaErrorIllegalAddress;
    } else {
      Fail(RunGuarded(
          work.name,
          [](void* body) {
            (*static_cast<const std::function<void()>*>(body))();
          },
          const_cast<std::function<void()>*>(&work.body)));
    }
  }
  checker::EndOperation();
  if (ended && options_.check_red_zones) {
    const std::string damage = Memory::Get().CheckRedZones();
    if (!damage.empty()) Report(damage + "  by " + work.name);
  }
  if (options_.protect_device_memory) Memory::Get().Protect(true);
  return ended;
}

void World::StepStream(CUstream_st& stream) {
  Operation& head = stream.queue.front();
  if (sticky_ != cudaSuccess) {  // Nothing more is executed, only drained.
    if (head.marker != nullptr) head.marker->done = true;
    stream.running = nullptr;
    stream.graph = nullptr;
    stream.queue.pop_front();
    return;
  }
  switch (head.kind) {
    case Operation::kRecord:
      head.marker->done = true;
      head.marker->past = stream.past;
      head.marker->past.Join(*head.host);
      head.marker->milliseconds = serial_ * 1e-3;
      break;
    case Operation::kWait:
      stream.past.Join(head.marker->past);
      break;
    case Operation::kWork:
      if (stream.running == nullptr) {
        stream.running = std::make_unique<Running>();
        stream.running->work = head.work;
        stream.past.Join(*head.host);
        Start(*stream.running, stream.past);
      }
      if (!StepRunning(*stream.running)) return;
      stream.past.Add(stream.running->serial);
      stream.running = nullptr;
      break;
    case Operation::kGraph: {
      const std::vector<Node>& nodes = head.graph->nodes;
      if (stream.graph == nullptr) {
        stream.past.Join(*head.host);
        stream.graph = std::make_unique<CUstream_st::GraphRun>();
        stream.graph->waits_for.resize(nodes.size());
        stream.graph->past.resize(nodes.size());
        stream.graph->left = static_cast<int>(nodes.size());
        for (size_t i = 0; i < nodes.size(); ++i) {
          stream.graph->waits_for[i] = static_cast<int>(nodes[i].after.size());
          if (nodes[i].after.empty()) {
            stream.graph->ready.push_back(static_cast<int>(i));
          }
        }
      }
      CUstream_st::GraphRun& run = *stream.graph;
      if (run.left > 0) {
        size_t pick = options_.seed == 0 ? 0 : random_.Below(run.ready.size());
        // CanStep() has found one that does not wait for other ranks.
        while (!CanStep(run.running[run.ready[pick]].get())) {
          pick = (pick + 1) % run.ready.size();
        }
        const int index = run.ready[pick];
        std::unique_ptr<Running>& running = run.running[index];
        if (running == nullptr) {
          running = std::make_unique<Running>();
          running->work = nodes[static_cast<size_t>(index)].work;
          Past past = stream.past;
          for (int a : nodes[static_cast<size_t>(index)].after) {
            past.Join(run.past[static_cast<size_t>(a)]);
          }
          Start(*running, past);
        }
        if (!StepRunning(*running)) return;
        Past& past = run.past[static_cast<size_t>(index)];
        past = running->past;
        past.Add(running->serial);
        if (running->tells_host) HostKnows(past);
        run.running.erase(index);
        run.ready.erase(run.ready.begin() + static_cast<std::ptrdiff_t>(pick));
        --run.left;
        for (int next : head.graph->before[static_cast<size_t>(index)]) {
          if (--run.waits_for[static_cast<size_t>(next)] == 0) {
            run.ready.push_back(next);
          }
        }
        if (run.left > 0) return;
      }
      for (const Past& past : run.past) stream.past.Join(past);
      stream.graph = nullptr;
      break;
    }
  }
  stream.queue.pop_front();
}

bool World::Step() {
  CUstream_st* best = nullptr;
  if (options_.seed != 0 && random_.Below(reshuffle_) == 0) {
    for (const auto& s : streams_) s->urgency = random_.Next();
  }
  for (const auto& s : streams_) {
    if (!CanStep(*s)) continue;
    if (best == nullptr || s->urgency > best->urgency) best = s.get();
  }
  if (best == nullptr) return false;
  if (options_.seed == 0) best->urgency = UINT64_MAX - ++steps_;  // In turn.
  StepStream(*best);
  return true;
}

bool World::WaitForOtherThreads() {
  std::string missing;
  for (const auto& s : streams_) {
    std::vector<const Running*> all = {s->running.get()};
    if (s->graph != nullptr) {
      for (const auto& [node, running] : s->graph->running) {
        all.push_back(running.get());
      }
    }
    for (const Running* r : all) {
      if (CanStep(r)) continue;
      missing += " " + r->meeting->name + ": " +
                 std::to_string(r->meeting->arrived) + " of " +
                 std::to_string(r->meeting->expected) + " ranks have come.";
    }
  }
  if (!missing.empty() &&
      enqueued_.wait_for(mutex_, options_.collective_timeout) ==
          std::cv_status::no_timeout) {
    return true;
  }
  Report("the host waits for work that can never run." + missing);
  return false;
}

void World::MaybeProgress() {
  if (eagerness_ == 0) return;
  while (static_cast<double>(random_.Below(1000)) < eagerness_ * 1000 &&
         Step()) {
  }
}

cudaError_t World::Synchronize(cudaStream_t stream) {
  return Synchronize([stream](const CUstream_st& s) { return &s == stream; });
}

cudaError_t World::SynchronizeDevice(int device) {
  return Synchronize(
      [device](const CUstream_st& s) { return s.device == device; });
}

cudaError_t World::Synchronize(
    const std::function<bool(const CUstream_st&)>& chosen) {
  const auto pending = [&] {
    return std::any_of(streams_.begin(), streams_.end(), [&](const auto& s) {
      return chosen(*s) && !s->queue.empty();
    });
  };
  while (pending()) {
    if (!Step() && !WaitForOtherThreads()) return cudaErrorUnknown;
  }
  Past past;
  for (const auto& s : streams_) {
    if (chosen(*s)) past.Join(s->past);
  }
  HostKnows(past);
  return sticky_;
}

cudaError_t World::Synchronize(const std::shared_ptr<Marker>& marker) {
  while (!marker->done) {
    if (!Step() && !WaitForOtherThreads()) return cudaErrorUnknown;
  }
  HostKnows(marker->past);
  return sticky_;
}

}  // namespace shardgraph::fake_cuda
