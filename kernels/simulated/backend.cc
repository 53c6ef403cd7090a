#include "kernels/simulated/backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/check.h"
#include "kernels/op_table.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

// Does nothing. Holds what a cost function wants to know, or its time.
class SimulatedKernel final : public PreparedKernel {
 public:
  explicit SimulatedKernel(const KernelContext& context)
      : op_(context.op), attributes_(context.attributes) {
    for (const Tensor& t : context.operands) operands_.push_back(t.type);
    for (const Tensor& t : context.results) results_.push_back(t.type);
  }
  SimulatedKernel(std::string name, double seconds)
      : name_(std::move(name)), fixed_seconds_(seconds) {}

  absl::Status Launch(Lane&) override { return absl::OkStatus(); }

  absl::string_view name() const { return op_ ? op_->name : name_; }
  double Seconds(const KernelSeconds& seconds) const {
    return op_ ? seconds(*op_, *attributes_, operands_, results_)
               : fixed_seconds_;
  }

 private:
  const OpDef* const op_ = nullptr;
  const Attributes* const attributes_ = nullptr;
  std::vector<TensorType> operands_;
  std::vector<TensorType> results_;
  const std::string name_;
  const double fixed_seconds_ = 0;
};

absl::StatusOr<std::unique_ptr<PreparedKernel>> PrepareSimulated(
    const KernelContext& context) {
  SG_CHECK(context.op != nullptr && context.attributes != nullptr);
  return std::make_unique<SimulatedKernel>(context);
}

const KernelTable& Table() {
  static const std::vector<KernelDef>& kernels = *[] {
    auto* const kernels = new std::vector<KernelDef>();
    for (const OpDef* const op : AllOps()) {
      kernels->push_back({.op = op->name, .prepare = PrepareSimulated});
    }
    return kernels;
  }();
  static const KernelTable& table = *new KernelTable({kernels});
  return table;
}

}  // namespace

std::unique_ptr<PreparedKernel> MakeSimulatedKernel(std::string name,
                                                    double seconds) {
  return std::make_unique<SimulatedKernel>(std::move(name), seconds);
}

LaneTime TimeOfLane(absl::Span<const SimulatedLaunch> timeline, int lane,
                    double begin, double end) {
  LaneTime time;
  for (const SimulatedLaunch& launch : timeline) {
    if (launch.lane != lane) continue;
    time.busy += std::max(
        0.0, std::min(launch.end, end) - std::max(launch.begin, begin));
  }
  time.idle = end - begin - time.busy;
  return time;
}

// What is enqueued or captured. The time of a launch is asked for once, before
// it is captured.
struct SimulatedBackend::Step {
  enum class Kind { kLaunch, kRecord, kWait };
  Kind kind;
  int lane;
  int event = 0;
  const SimulatedKernel* kernel = nullptr;
  double seconds = 0;
};

struct SimulatedBackend::Program final : public Backend::Recording {
  std::vector<Step> steps;
};

SimulatedBackend::SimulatedBackend(KernelSeconds seconds)
    : seconds_(std::move(seconds)) {}

SimulatedBackend::~SimulatedBackend() {
  for (const auto& [data, bytes] : reserved_) munmap(data, bytes);
}

double SimulatedBackend::now() const {
  double now = 0;
  for (const LaneClock& lane : lanes_) now = std::max(now, lane.clock);
  return now;
}

void SimulatedBackend::ResetClock() {
  timeline_.clear();
  std::fill(lanes_.begin(), lanes_.end(), LaneClock{});
  std::fill(events_.begin(), events_.end(), 0.0);
}

const KernelTable& SimulatedBackend::kernels() const { return Table(); }

absl::StatusOr<void*> SimulatedBackend::Allocate(int64_t bytes) {
  if (bytes < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("cannot reserve ", bytes, " bytes"));
  const size_t size = std::max<int64_t>(bytes, 1);
  void* const data = mmap(nullptr, size, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot reserve ", bytes,
                     " bytes of address space: ", std::strerror(errno)));
  reserved_.emplace_back(data, size);
  return data;
}

absl::Status SimulatedBackend::Prepare(int num_lanes, int num_events) {
  if (!lanes_.empty())
    return absl::FailedPreconditionError("the backend is already prepared");
  if (num_lanes < 1 || num_events < 0)
    return absl::InvalidArgumentError(
        absl::StrCat("a backend needs at least 1 lane and 0 events, got ",
                     num_lanes, " lanes and ", num_events, " events"));
  lanes_.resize(num_lanes);
  events_.resize(num_events, 0);
  return absl::OkStatus();
}

void SimulatedBackend::Launch(int lane, PreparedKernel* kernel) {
  CheckLane(lane);
  SG_CHECK(kernel != nullptr);
  if (!error_.ok()) return;
  const auto* const simulated = dynamic_cast<const SimulatedKernel*>(kernel);
  if (simulated == nullptr) {
    error_ = absl::InvalidArgumentError(
        "the simulated backend runs only kernels of its own table");
    return;
  }
  const double seconds = simulated->Seconds(seconds_);
  if (!(seconds >= 0) || !std::isfinite(seconds)) {
    error_ = absl::InvalidArgumentError(
        absl::StrCat("the cost of ", simulated->name(), " is ", seconds,
                     " seconds; it must be finite and at least 0"));
    return;
  }
  Enqueue({.kind = Step::Kind::kLaunch,
           .lane = lane,
           .kernel = simulated,
           .seconds = seconds});
}

void SimulatedBackend::Record(int lane, int event) {
  CheckLane(lane);
  CheckEvent(event);
  Enqueue({.kind = Step::Kind::kRecord, .lane = lane, .event = event});
}

void SimulatedBackend::Wait(int lane, int event) {
  CheckLane(lane);
  CheckEvent(event);
  Enqueue({.kind = Step::Kind::kWait, .lane = lane, .event = event});
}

absl::Status SimulatedBackend::Synchronize() {
  Join();
  return error_;
}

absl::Status SimulatedBackend::BeginCapture() {
  if (lanes_.empty())
    return absl::FailedPreconditionError("Prepare comes before BeginCapture");
  if (capture_ != nullptr)
    return absl::FailedPreconditionError("a capture is already running");
  capture_ = std::make_unique<Program>();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Backend::Recording>>
SimulatedBackend::EndCapture() {
  if (capture_ == nullptr)
    return absl::FailedPreconditionError(
        "BeginCapture comes before EndCapture");
  return std::move(capture_);
}

void SimulatedBackend::Replay(Recording* recording) {
  const auto* const program = dynamic_cast<const Program*>(recording);
  SG_CHECK(program != nullptr && capture_ == nullptr);
  // Events recorded before are in the past of all lanes from here on, so a
  // captured Wait sees Records of this replay only.
  Join();
  for (const Step& step : program->steps) Run(step);
  Join();
}

absl::Status SimulatedBackend::CopyToDevice(void*, const void*, int64_t) {
  return Synchronize();
}

absl::Status SimulatedBackend::CopyToHost(void* host, const void*,
                                          int64_t bytes) {
  SG_RETURN_IF_ERROR(Synchronize());
  if (bytes > 0) std::memset(host, 0, bytes);
  return absl::OkStatus();
}

void SimulatedBackend::CheckLane(int lane) const {
  SG_CHECK(lane >= 0 && lane < static_cast<int>(lanes_.size()))
      << "lane " << lane << " of " << lanes_.size();
}

void SimulatedBackend::CheckEvent(int event) const {
  SG_CHECK(event >= 0 && event < static_cast<int>(events_.size()))
      << "event " << event << " of " << events_.size();
}

void SimulatedBackend::Enqueue(const Step& step) {
  if (capture_ != nullptr) {
    capture_->steps.push_back(step);
  } else {
    Run(step);
  }
}

void SimulatedBackend::Run(const Step& step) {
  LaneClock& lane = lanes_[step.lane];
  switch (step.kind) {
    case Step::Kind::kLaunch: {
      if (!error_.ok()) return;
      const double end = lane.clock + step.seconds;
      timeline_.push_back({.lane = step.lane,
                           .kernel = step.kernel,
                           .name = step.kernel->name(),
                           .ready = lane.free,
                           .begin = lane.clock,
                           .end = end});
      lane = {.clock = end, .free = end};
      return;
    }
    case Step::Kind::kRecord:
      events_[step.event] = lane.clock;
      return;
    case Step::Kind::kWait:
      lane.clock = std::max(lane.clock, events_[step.event]);
      return;
  }
}

void SimulatedBackend::Join() {
  const double time = now();
  for (LaneClock& lane : lanes_) lane = {.clock = time, .free = time};
}

}  // namespace shardgraph
