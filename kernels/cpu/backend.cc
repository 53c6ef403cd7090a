#include "kernels/cpu/backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/check.h"
#include "kernels/cpu/lane_thread.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

class CpuBackend;

// One program per lane. Positions in it count the Records of this recording.
class Program final : public Backend::Recording {
 public:
  Program(CpuBackend* backend, int num_lanes)
      : backend(backend), lanes(num_lanes), records(num_lanes, 0) {}
  // The lanes may still run it.
  ~Program() override;

  CpuBackend* const backend;
  std::vector<std::vector<Command>> lanes;
  std::vector<uint32_t> records;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(CpuBackendOptions options)
      : options_(std::move(options)) {}

  ~CpuBackend() override {
    for (const auto& lane : lanes_) lane->Stop();
    lanes_.clear();
    for (const auto& [data, bytes] : pages_) munmap(data, bytes);
  }

  absl::string_view name() const override { return options_.name; }
  const KernelTable& kernels() const override { return *options_.kernels; }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (bytes < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("cannot allocate ", bytes, " bytes"));
    if (options_.allocate != nullptr) {
      SG_ASSIGN_OR_RETURN(void* const data, options_.allocate(bytes));
      if (data != nullptr) return data;
    }
    const size_t size = std::max<int64_t>(bytes, 1);
    void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot allocate ", bytes,
                       " bytes of host memory: ", std::strerror(errno)));
    // Fewer TLB misses; not everywhere available, and nothing depends on it.
    madvise(data, size, MADV_HUGEPAGE);
    pages_.emplace_back(data, size);
    return data;
  }

  absl::Status Prepare(int num_lanes, int num_events) override {
    if (num_lanes_ != 0)
      return absl::FailedPreconditionError("the backend is already prepared");
    if (num_lanes < 1 || num_events < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("a backend needs at least 1 lane and 0 events, got ",
                       num_lanes, " lanes and ", num_events, " events"));
    num_lanes_ = num_lanes;
    events_.resize(num_events);
    records_.resize(num_lanes, 0);
    if (num_lanes == 1) {
      pool_ = MakeThreadPool(options_.threads, options_.binding);
      host_lane_ = {.index = 0, .pool = pool_.get()};
      return absl::OkStatus();
    }
    for (int i = 0; i < num_lanes; ++i) {
      lanes_.push_back(std::make_unique<LaneThread>(
          i, num_lanes, ThreadsOfLane(i), options_.binding, &error_));
    }
    for (const auto& lane : lanes_) lane->Start(&lanes_);
    return absl::OkStatus();
  }

  void Launch(int lane, PreparedKernel* kernel) override {
    CheckLane(lane);
    SG_CHECK(kernel != nullptr);
    if (capture_ != nullptr) {
      capture_->lanes[lane].push_back(
          {.kind = Command::Kind::kLaunch, .kernel = kernel});
    } else if (lanes_.empty()) {
      LaunchOnHost(kernel);
    } else {
      EndReplay();
      Push(lane, {.kind = Command::Kind::kLaunch, .kernel = kernel});
      lanes_[lane]->Publish();
    }
  }

  void Record(int lane, int event) override {
    CheckLane(lane);
    CheckEvent(event);
    if (num_lanes_ == 1) return;
    if (capture_ != nullptr) {
      capture_->lanes[lane].push_back({.kind = Command::Kind::kRecord});
      events_[event] = {
          .era = era_, .lane = lane, .position = ++capture_->records[lane]};
      return;
    }
    EndReplay();
    Push(lane, {.kind = Command::Kind::kRecord});
    events_[event] = {.era = era_, .lane = lane, .position = ++records_[lane]};
    lanes_[lane]->Publish();
  }

  void Wait(int lane, int event) override {
    CheckLane(lane);
    CheckEvent(event);
    if (num_lanes_ == 1) return;
    if (capture_ == nullptr) EndReplay();
    const Event& newest = events_[event];
    // Nothing to wait for: never recorded, recorded before the last barrier, or
    // recorded on this lane.
    if (newest.era != era_ || newest.lane == lane) return;
    const Command wait = {.kind = Command::Kind::kWait,
                          .lane = newest.lane,
                          .position = newest.position};
    if (capture_ != nullptr) {
      capture_->lanes[lane].push_back(wait);
    } else {
      Push(lane, wait);
      lanes_[lane]->Publish();
    }
  }

  absl::Status Synchronize() override {
    Drain();
    return error_.Get();
  }

  absl::Status BeginCapture() override {
    if (num_lanes_ == 0)
      return absl::FailedPreconditionError("Prepare comes before BeginCapture");
    if (capture_ != nullptr)
      return absl::FailedPreconditionError("a capture is already running");
    capture_ = std::make_unique<Program>(this, num_lanes_);
    ++era_;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<Recording>> EndCapture() override {
    if (capture_ == nullptr)
      return absl::FailedPreconditionError(
          "BeginCapture comes before EndCapture");
    // Eager Records of before are no longer known by event: order what follows
    // behind them.
    ++era_;
    barrier_due_ = true;
    return std::move(capture_);
  }

  void Replay(Recording* recording) override {
    const Program* const program = static_cast<Program*>(recording);
    SG_CHECK(program != nullptr && program->backend == this &&
             capture_ == nullptr);
    if (lanes_.empty()) {
      for (const Command& step : program->lanes[0]) LaunchOnHost(step.kernel);
      return;
    }
    PushBarrier();
    for (int i = 0; i < num_lanes_; ++i) {
      Push(i, {.kind = Command::Kind::kProgram, .program = &program->lanes[i]});
      records_[i] += program->records[i];
    }
    for (const auto& lane : lanes_) lane->Publish();
    barrier_due_ = true;
  }

  absl::Status CopyToDevice(void* device, const void* host,
                            int64_t bytes) override {
    return Copy(device, host, bytes);
  }
  bool on_host() const override { return true; }

  absl::Status CopyToHost(void* host, const void* device,
                          int64_t bytes) override {
    return Copy(host, device, bytes);
  }

  void Drain() {
    for (const auto& lane : lanes_) lane->Drain();
  }

 private:
  // Where the newest Record of an event is. Positions count from the start of
  // the backend, in a capture from its start.
  struct Event {
    int64_t era = 0;
    int lane = 0;
    uint32_t position = 0;
  };

  int ThreadsOfLane(int lane) const {
    if (lane == 0) return options_.threads;
    const std::vector<int>& others = options_.other_lane_threads;
    return lane <= static_cast<int>(others.size()) ? others[lane - 1] : 1;
  }

  void CheckLane(int lane) const {
    SG_CHECK(lane >= 0 && lane < num_lanes_)
        << "lane " << lane << " of " << num_lanes_;
  }
  void CheckEvent(int event) const {
    SG_CHECK(event >= 0 && event < static_cast<int>(events_.size()))
        << "event " << event << " of " << events_.size();
  }

  void LaunchOnHost(PreparedKernel* kernel) {
    if (error_.failed()) return;
    const absl::Status status = kernel->Launch(host_lane_);
    if (!status.ok()) error_.Set(status);
  }

  void Push(int lane, const Command& command) {
    if (lanes_[lane]->full()) {
      // It may wait for a command that another lane has not been told of.
      for (const auto& other : lanes_) other->Publish();
    }
    lanes_[lane]->Push(command);
  }

  // Every lane waits until all have come here. Unpublished.
  void PushBarrier() {
    for (int i = 0; i < num_lanes_; ++i) {
      Push(i, {.kind = Command::Kind::kRecord});
      ++records_[i];
    }
    for (int i = 0; i < num_lanes_; ++i) {
      for (int other = 0; other < num_lanes_; ++other) {
        Push(i, {.kind = Command::Kind::kBarrier,
                 .lane = other,
                 .position = records_[other]});
      }
    }
    ++era_;
    barrier_due_ = false;
  }

  void EndReplay() {
    if (!barrier_due_) return;
    PushBarrier();
    for (const auto& lane : lanes_) lane->Publish();
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes) {
    Drain();
    SG_RETURN_IF_ERROR(error_.Get());
    if (bytes > 0) std::memcpy(to, from, bytes);
    return absl::OkStatus();
  }

  const CpuBackendOptions options_;
  FirstError error_;
  std::vector<std::pair<void*, size_t>> pages_;

  int num_lanes_ = 0;
  std::vector<std::unique_ptr<LaneThread>> lanes_;  // empty with one lane
  std::unique_ptr<ThreadPool> pool_;                // with one lane
  Lane host_lane_;

  // What the host has enqueued. Between two barriers, and in each capture, an
  // era of its own: events of another era need no waiting.
  int64_t era_ = 1;
  bool barrier_due_ = false;  // before the next eager command
  std::vector<Event> events_;
  std::vector<uint32_t> records_;  // Records enqueued per lane
  std::unique_ptr<Program> capture_;
};

Program::~Program() { backend->Drain(); }

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(
    CpuBackendOptions options) {
  if (options.kernels == nullptr)
    return absl::InvalidArgumentError("CpuBackendOptions.kernels is null");
  if (options.threads < 1)
    return absl::InvalidArgumentError(
        absl::StrCat("CpuBackendOptions.threads is ", options.threads,
                     "; it must be at least 1"));
  for (const int threads : options.other_lane_threads) {
    if (threads < 1)
      return absl::InvalidArgumentError(
          absl::StrCat("CpuBackendOptions.other_lane_threads has an entry ",
                       threads, "; each must be at least 1"));
  }
  return std::make_unique<CpuBackend>(std::move(options));
}

}  // namespace shardgraph
