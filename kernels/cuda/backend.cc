#include "kernels/cuda/backend.h"

#include <cuda_runtime.h>
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define SG_HAVE_NVTX
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/cuda/signals.h"
#include "kernels/cuda/status.h"
#include "kernels/host_link.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

using cuda::CudaStatus;

constexpr int64_t kAlignment = 4096;

class Graph final : public Backend::Recording {
 public:
  Graph(const Backend* backend, cudaGraphExec_t exec)
      : backend(backend), exec(exec) {}
  // The device may still run it.
  ~Graph() override { cudaGraphExecDestroy(exec); }

  const Backend* const backend;
  const cudaGraphExec_t exec;
};

class CudaBackend final : public Backend, public HostLink {
 public:
  explicit CudaBackend(CudaBackendOptions options)
      : options_(std::move(options)) {}

  ~CudaBackend() override {
    if (capturing_) EndCapture().status().IgnoreError();
    if (uploads_ != nullptr) streams_.push_back(uploads_);
    for (const cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
    for (const Event& event : events_) cudaEventDestroy(event.handle);
    for (const cudaEvent_t event : lane_events_) cudaEventDestroy(event);
    for (const cudaEvent_t event : chunk_events_) cudaEventDestroy(event);
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    cudaFreeHost(chunks_);
    for (void* memory : shared_) cudaFreeHost(memory);
    for (void* memory : memory_) cudaFree(memory);
  }

  // What is needed for memory and copies.
  absl::Status Start() {
#ifdef SG_HAVE_NVTX
    // Not by the first range: several ranks of a process may begin theirs.
    static const bool once = (nvtxInitialize(nullptr), true);
    static_cast<void>(once);
#endif
    int devices = 0;
    SG_RETURN_IF_CUDA_ERROR(cudaGetDeviceCount(&devices));
    if (options_.device < 0 || options_.device >= devices)
      return absl::InvalidArgumentError(absl::StrCat(
          "CudaBackendOptions.device is ", options_.device,
          "; it must be less than the ", devices, " devices that are visible"));
    SG_RETURN_IF_CUDA_ERROR(cudaSetDevice(options_.device));
    void* chunks = nullptr;
    SG_RETURN_IF_CUDA_ERROR(
        cudaMallocHost(&chunks, options_.chunk_bytes * options_.num_chunks));
    chunks_ = static_cast<char*>(chunks);
    for (int i = 0; i < options_.num_chunks; ++i)
      SG_RETURN_IF_ERROR(AddEvent(&chunk_events_));
    return AddLane();
  }

  absl::string_view name() const override { return "cuda"; }
  const KernelTable& kernels() const override { return *options_.kernels; }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (bytes < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("cannot allocate ", bytes, " bytes"));
    if (options_.allocate != nullptr) {
      SG_ASSIGN_OR_RETURN(void* const data, options_.allocate(bytes));
      if (data != nullptr) return data;
    }
    SG_RETURN_IF_ERROR(CheckUsable());
    void* memory = nullptr;
    const size_t size = bytes + kAlignment;
    if (const cudaError_t error = cudaMalloc(&memory, size);
        error != cudaSuccess) {
      cudaGetLastError();  // a failed allocation spoils nothing else
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      return CudaStatus(
          error, absl::StrCat("cannot allocate ", bytes, " bytes on device ",
                              options_.device, ", of whose ", total, " bytes ",
                              free, " are free"));
    }
    memory_.push_back(memory);
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    void* const data = reinterpret_cast<void*>((begin + kAlignment - 1) /
                                               kAlignment * kAlignment);
    SG_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(data, 0, bytes, streams_[0]));
    // Others than lanes may use it.
    WaitForLane0();
    SG_RETURN_IF_ERROR(error_);
    return data;
  }

  absl::Status Prepare(int num_lanes, int num_events) override {
    if (prepared_)
      return absl::FailedPreconditionError("the backend is already prepared");
    if (num_lanes < 1 || num_events < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("a backend needs at least 1 lane and 0 events, got ",
                       num_lanes, " lanes and ", num_events, " events"));
    while (static_cast<int>(streams_.size()) < num_lanes)
      SG_RETURN_IF_ERROR(AddLane());
    for (int i = 0; i < num_events; ++i) {
      std::vector<cudaEvent_t> handle;
      SG_RETURN_IF_ERROR(AddEvent(&handle));
      events_.push_back({.handle = handle[0]});
    }
    prepared_ = true;
    return absl::OkStatus();
  }

  void Launch(int lane, PreparedKernel* kernel) override {
    CheckLane(lane);
    SG_CHECK(kernel != nullptr);
    BeginCommand(lane);
    if (!error_.ok()) return;
    Lane where = {.index = lane, .stream = streams_[lane]};
    Keep(kernel->Launch(where));
  }

  void Record(int lane, int event) override {
    CheckLane(lane);
    CheckEvent(event);
    if (streams_.size() == 1) return;
    BeginCommand(lane);
    Event& newest = events_[event];
    newest.lane = lane;
    newest.era = era_;
    Keep(cudaEventRecord(newest.handle, streams_[lane]), "cudaEventRecord");
  }

  void Wait(int lane, int event) override {
    CheckLane(lane);
    CheckEvent(event);
    if (streams_.size() == 1) return;
    BeginCommand(lane);
    const Event& newest = events_[event];
    // Nothing to wait for: never recorded, recorded before all lanes were last
    // joined or outside this capture, or recorded on this lane.
    if (newest.era != era_ || newest.lane == lane) return;
    WaitForEvent(lane, newest.handle);
  }

  absl::Status Synchronize() override {
    SG_RETURN_IF_ERROR(CheckUsable());
    JoinLanes();
    WaitForLane0();
    return error_;
  }

  absl::Status BeginCapture() override {
    if (!prepared_)
      return absl::FailedPreconditionError("Prepare comes before BeginCapture");
    if (capturing_)
      return absl::FailedPreconditionError("a capture is already running");
    SG_RETURN_IF_ERROR(error_);
    // So that what follows the capture finds everything before it joined.
    JoinLanes();
    SG_RETURN_IF_ERROR(error_);
    SG_RETURN_IF_CUDA_ERROR(
        cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeThreadLocal));
    capturing_ = true;
    ForkLanes();
    return error_;
  }

  absl::StatusOr<std::unique_ptr<Recording>> EndCapture() override {
    if (!capturing_)
      return absl::FailedPreconditionError(
          "BeginCapture comes before EndCapture");
    std::fill(busy_.begin(), busy_.end(), true);
    JoinLanes();
    capturing_ = false;
    // Records of before the capture are no longer known by event.
    fork_due_ = true;
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(streams_[0], &graph);
    if (ended != cudaSuccess || !error_.ok()) {
      if (graph != nullptr) cudaGraphDestroy(graph);
      Keep(ended, "cudaStreamEndCapture");
      // Nothing has run: what was wrong with the capture is wrong with no more.
      cudaGetLastError();
      return std::exchange(error_, absl::OkStatus());
    }
    cudaGraphExec_t exec = nullptr;
    cudaError_t made = cudaSuccess;
    if (!options_.graph_files.empty()) {
      made = cudaGraphDebugDotPrint(
          graph, absl::StrCat(options_.graph_files, ++drawn_, ".dot").c_str(),
          cudaGraphDebugDotFlagsKernelNodeParams);
    }
    // Without the flag all nodes would run at lane 0's priority.
    if (made == cudaSuccess)
      made = cudaGraphInstantiate(&exec, graph,
                                  cudaGraphInstantiateFlagUseNodePriority);
    cudaGraphDestroy(graph);
    SG_RETURN_IF_ERROR(CudaStatus(made, "drawing and instantiating a graph"));
    auto recording = std::make_unique<Graph>(this, exec);
    // Else the first replay would do it.
    SG_RETURN_IF_CUDA_ERROR(cudaGraphUpload(exec, streams_[0]));
    return recording;
  }

  void Replay(Recording* recording) override {
    const Graph* const graph = static_cast<Graph*>(recording);
    SG_CHECK(graph != nullptr && graph->backend == this && !capturing_);
    JoinLanes();
    fork_due_ = true;
    if (!error_.ok()) return;
    Keep(cudaGraphLaunch(graph->exec, streams_[0]), "cudaGraphLaunch");
  }

  absl::Status CopyToDevice(void* device, const void* host,
                            int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckUsable());
    JoinLanes();
    fork_due_ = true;
    for (int64_t done = 0; done < bytes;) {
      const int64_t size = std::min(bytes - done, options_.chunk_bytes);
      const int chunk = next_chunk_;
      next_chunk_ = (next_chunk_ + 1) % options_.num_chunks;
      WaitFor([&] { return cudaEventQuery(chunk_events_[chunk]); });
      SG_RETURN_IF_ERROR(error_);
      std::memcpy(Chunk(chunk), static_cast<const char*>(host) + done, size);
      Keep(cudaMemcpyAsync(static_cast<char*>(device) + done, Chunk(chunk),
                           size, cudaMemcpyHostToDevice, streams_[0]),
           "copy to the device");
      Keep(cudaEventRecord(chunk_events_[chunk], streams_[0]),
           "cudaEventRecord");
      done += size;
    }
    return error_;
  }

  absl::Status CopyToHost(void* host, const void* device,
                          int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckUsable());
    JoinLanes();
    fork_due_ = true;
    const int64_t all_chunks = options_.chunk_bytes * options_.num_chunks;
    for (int64_t done = 0; done < bytes;) {
      const int64_t size = std::min(bytes - done, all_chunks);
      // Lane 0 reads the chunks in this order too: they are free by then.
      Keep(cudaMemcpyAsync(chunks_, static_cast<const char*>(device) + done,
                           size, cudaMemcpyDeviceToHost, streams_[0]),
           "copy to the host");
      WaitForLane0();
      SG_RETURN_IF_ERROR(error_);
      std::memcpy(static_cast<char*>(host) + done, chunks_, size);
      done += size;
    }
    return error_;
  }

  absl::StatusOr<void*> AllocateShared(int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckUsable());
    void* memory = nullptr;
    SG_RETURN_IF_CUDA_ERROR(
        cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
    shared_.push_back(memory);
    std::memset(memory, 0, bytes);
    return memory;
  }

  absl::StatusOr<void*> AllocateDevice(int64_t bytes) override {
    SG_RETURN_IF_ERROR(CheckUsable());
    if (uploads_ == nullptr) {
      int least = 0, greatest = 0;
      SG_RETURN_IF_CUDA_ERROR(
          cudaDeviceGetStreamPriorityRange(&least, &greatest));
      SG_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(
          &uploads_, cudaStreamNonBlocking, greatest));
    }
    void* memory = nullptr;
    SG_RETURN_IF_CUDA_ERROR(cudaMalloc(&memory, bytes));
    memory_.push_back(memory);
    SG_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(memory, 0, bytes, streams_[0]));
    // Uploads are behind it, though they wait for no lane.
    WaitForLane0();
    SG_RETURN_IF_ERROR(error_);
    return memory;
  }

  void Upload(void* device, const void* host, int64_t bytes) override {
    if (!error_.ok()) return;
    Keep(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, uploads_),
         "uploading inputs");
  }

  bool Uploaded() override {
    const cudaError_t state = cudaStreamQuery(uploads_);
    if (state == cudaErrorNotReady) return false;
    Keep(state, "uploading inputs");
    return true;
  }

  void Mark(int lane, int64_t* where, int64_t value) override {
    CheckLane(lane);
    BeginCommand(lane);
    Keep(cuda::LaunchMark(where, value, streams_[lane]), "a marker");
  }

  void Append(int lane, RecordRing* ring, const void* device) override {
    CheckLane(lane);
    BeginCommand(lane);
    Keep(cuda::LaunchAppend(ring, device, static_cast<int64_t>(ring->words),
                            streams_[lane]),
         "a report");
  }

  void Take(int lane, void* device, const UploadSlots& slots, int64_t begin,
            int64_t bytes) override {
    CheckLane(lane);
    BeginCommand(lane);
    Keep(cuda::LaunchTake(device, slots.data + begin, slots.bytes, slots.turn,
                          bytes, streams_[lane]),
         "taking inputs");
  }

  void EndTurn(int lane, const UploadSlots& slots) override {
    CheckLane(lane);
    BeginCommand(lane);
    Keep(cuda::LaunchEndTurn(slots.turn, slots.taken, streams_[lane]),
         "the end of inputs");
  }

  absl::Status Poll() override {
    SG_RETURN_IF_ERROR(CheckUsable());
    const cudaError_t state = cudaStreamQuery(streams_[0]);
    if (state != cudaErrorNotReady) Keep(state, "work on the device");
    if (options_.health != nullptr) Keep(options_.health());
    std::this_thread::yield();
    return error_;
  }

  void BeginRange(const char* name) override {
#ifdef SG_HAVE_NVTX
    nvtxRangePushA(name);
#endif
  }
  void EndRange() override {
#ifdef SG_HAVE_NVTX
    nvtxRangePop();
#endif
  }

 private:
  // Where the newest Record of an event is.
  struct Event {
    cudaEvent_t handle = nullptr;
    int64_t era = 0;
    int lane = 0;
  };

  absl::Status AddLane() {
    int least = 0, greatest = 0;
    SG_RETURN_IF_CUDA_ERROR(
        cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    SG_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(
        &stream, cudaStreamNonBlocking, streams_.empty() ? least : greatest));
    streams_.push_back(stream);
    busy_.push_back(false);
    return AddEvent(&lane_events_);
  }

  static absl::Status AddEvent(std::vector<cudaEvent_t>* events) {
    cudaEvent_t event = nullptr;
    SG_RETURN_IF_CUDA_ERROR(
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    events->push_back(event);
    return absl::OkStatus();
  }

  void CheckLane(int lane) const {
    SG_CHECK(prepared_ && lane >= 0 && lane < static_cast<int>(streams_.size()))
        << "lane " << lane << " of " << streams_.size();
  }
  void CheckEvent(int event) const {
    SG_CHECK(event >= 0 && event < static_cast<int>(events_.size()))
        << "event " << event << " of " << events_.size();
  }

  char* Chunk(int i) const { return chunks_ + i * options_.chunk_bytes; }

  // For what must not be captured.
  absl::Status CheckUsable() const {
    if (capturing_)
      return absl::FailedPreconditionError(
          "not between BeginCapture and EndCapture");
    return error_;
  }

  // The first error stays.
  void Keep(const absl::Status& status) {
    if (error_.ok()) error_ = status;
  }
  void Keep(cudaError_t error, absl::string_view what) {
    if (error != cudaSuccess) Keep(CudaStatus(error, what));
  }

  void WaitForEvent(int lane, cudaEvent_t event) {
    Keep(cudaStreamWaitEvent(streams_[lane], event, cudaEventWaitDefault),
         "cudaStreamWaitEvent");
  }

  // Before an eager or captured command of a lane.
  void BeginCommand(int lane) {
    if (fork_due_ && !capturing_) ForkLanes();
    busy_[lane] = true;
  }

  // Lane 0 goes on behind everything enqueued before on any lane.
  void JoinLanes() {
    for (size_t i = 1; i < streams_.size(); ++i) {
      if (!busy_[i]) continue;
      busy_[i] = false;
      Keep(cudaEventRecord(lane_events_[i], streams_[i]), "cudaEventRecord");
      WaitForEvent(0, lane_events_[i]);
    }
  }

  // The other lanes go on behind lane 0, which has joined them before.
  void ForkLanes() {
    fork_due_ = false;
    ++era_;
    if (streams_.size() == 1) return;
    Keep(cudaEventRecord(lane_events_[0], streams_[0]), "cudaEventRecord");
    for (size_t i = 1; i < streams_.size(); ++i)
      WaitForEvent(i, lane_events_[0]);
  }

  void WaitForLane0() {
    if (options_.health == nullptr) {
      Keep(cudaStreamSynchronize(streams_[0]), "work on the device");
      return;
    }
    WaitFor([&] { return cudaStreamQuery(streams_[0]); });
  }

  // Until `query` does not say "not ready", or something is broken.
  template <typename Query>
  void WaitFor(Query query) {
    for (int64_t i = 0; error_.ok(); ++i) {
      const cudaError_t state = query();
      if (state != cudaErrorNotReady) {
        Keep(state, "work on the device");
        return;
      }
      if (options_.health != nullptr) Keep(options_.health());
      // A step takes milliseconds: look often at first, then rarely.
      if (i < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  const CudaBackendOptions options_;
  absl::Status error_;
  std::vector<void*> memory_;

  bool prepared_ = false;
  bool capturing_ = false;
  std::vector<cudaStream_t> streams_;     // by lane
  std::vector<cudaEvent_t> lane_events_;  // by lane: joins and forks
  std::vector<Event> events_;

  // Between two joins of all lanes, and in each capture, an era of its own:
  // events of another era need no waiting.
  int64_t era_ = 1;
  bool fork_due_ = false;  // before the next command that is not lane 0's alone
  std::vector<bool> busy_;  // by lane: commands that lane 0 has not joined

  std::vector<void*> shared_;       // pinned, of AllocateShared
  cudaStream_t uploads_ = nullptr;  // of no lane; made with the first memory
  int drawn_ = 0;                   // graphs

  char* chunks_ = nullptr;                 // pinned
  std::vector<cudaEvent_t> chunk_events_;  // behind the last copy from a chunk
  int next_chunk_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(
    CudaBackendOptions options) {
  if (options.kernels == nullptr)
    return absl::InvalidArgumentError("CudaBackendOptions.kernels is null");
  if (options.chunk_bytes < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("CudaBackendOptions.chunk_bytes is ", options.chunk_bytes,
                     "; it must be at least 1"));
  if (options.num_chunks < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("CudaBackendOptions.num_chunks is ", options.num_chunks,
                     "; it must be at least 1"));
  auto backend = std::make_unique<CudaBackend>(std::move(options));
  SG_RETURN_IF_ERROR(backend->Start());
  return backend;
}

}  // namespace shardgraph
