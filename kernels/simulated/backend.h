// SimulatedBackend: lanes with a virtual clock and kernels that take time but
// do nothing, so that schedules are timed exactly, without hardware.
//
// Each launch occupies its lane for the seconds that a cost function gives for
// the op instance. A Wait moves the lane's clock to the time of the newest
// Record of the event, if that is later; a replay starts on all lanes when
// everything enqueued before is over, and what follows starts when the replay
// is over; Synchronize and copies bring all lanes to the same time. Nothing
// depends on the wall clock: results are the same on every machine.
//
// A collective costs what the cost function says; peers are taken to arrive at
// the same time (all ranks run the same plan), so no communicator is needed.
//
// Memory is address space only: Allocate reserves addresses that nobody may
// touch, so plans far larger than this machine run. CopyToHost gives zeros.
//
// Threads: one host thread, which does all the work at enqueue time.
#ifndef KERNELS_SIMULATED_BACKEND_H_
#define KERNELS_SIMULATED_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/kernel.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shardgraph {

// Seconds that an op instance takes: finite, 0 or more.
using KernelSeconds =
    std::function<double(const OpDef& op, const Attributes& attributes,
                         absl::Span<const TensorType> operands,
                         absl::Span<const TensorType> results)>;

// A kernel of `seconds` under the given name, for schedules made by hand.
std::unique_ptr<PreparedKernel> MakeSimulatedKernel(std::string name,
                                                    double seconds);

// One launch that has run.
struct SimulatedLaunch {
  int lane = 0;
  const PreparedKernel* kernel = nullptr;
  absl::string_view name;  // of the op; lives as long as the kernel
  double ready = 0;        // seconds: the lane was free from here on,
  double begin = 0;        // and waited until here
  double end = 0;
};

// What a lane did between two points in time.
struct LaneTime {
  double busy = 0;  // seconds in launches
  double idle = 0;  // the rest
};
LaneTime TimeOfLane(absl::Span<const SimulatedLaunch> timeline, int lane,
                    double begin, double end);

class SimulatedBackend final : public Backend {
 public:
  // The table has a kernel for each op of the op table, whatever the types.
  explicit SimulatedBackend(KernelSeconds seconds);
  ~SimulatedBackend() override;

  // Launches since ResetClock in the order of enqueuing, replays included:
  // after one run of a phase, entry i is the phase's i-th node. Times in
  // seconds since ResetClock.
  const std::vector<SimulatedLaunch>& timeline() const { return timeline_; }
  // When everything enqueued so far is over.
  double now() const;
  // Forgets the timeline and starts again at 0, all lanes at the same time.
  void ResetClock();

  absl::string_view name() const override { return "simulated"; }
  const KernelTable& kernels() const override;
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  absl::Status Prepare(int num_lanes, int num_events) override;
  // Kernels come from kernels() or MakeSimulatedKernel; another one is an
  // error of Synchronize, as is a cost that is no time.
  void Launch(int lane, PreparedKernel* kernel) override;
  void Record(int lane, int event) override;
  void Wait(int lane, int event) override;
  absl::Status Synchronize() override;
  absl::Status BeginCapture() override;
  absl::StatusOr<std::unique_ptr<Recording>> EndCapture() override;
  void Replay(Recording* recording) override;
  absl::Status CopyToDevice(void* device, const void* host,
                            int64_t bytes) override;
  absl::Status CopyToHost(void* host, const void* device,
                          int64_t bytes) override;

 private:
  struct Step;
  struct Program;
  struct LaneClock {
    double clock = 0;  // when the lane gets to what is enqueued next
    double free = 0;   // the same without waits since the last launch
  };

  void CheckLane(int lane) const;
  void CheckEvent(int event) const;
  void Enqueue(const Step& step);  // runs or captures
  void Run(const Step& step);
  void Join();  // brings all lanes to the same time

  const KernelSeconds seconds_;
  std::vector<std::pair<void*, size_t>> reserved_;
  absl::Status error_;
  std::vector<LaneClock> lanes_;
  std::vector<double> events_;  // time of the newest Record
  std::vector<SimulatedLaunch> timeline_;
  std::unique_ptr<Program> capture_;
};

}  // namespace shardgraph

#endif  // KERNELS_SIMULATED_BACKEND_H_
