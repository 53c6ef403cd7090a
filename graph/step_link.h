// StepLink: what the host and a device exchange in replayed phases without
// waiting for each other: inputs, markers of progress, a report.
//
// Inputs. What the host stages before a captured phase is part of it: the
// recording takes it from one of two slots on the device, by turns, to where it
// belongs. While one run works, the host uploads the next one's inputs to the
// other slot; it waits for a slot to be taken, two runs before, and for the
// upload, which no lane does. Lanes do not write what is staged. The slots are
// memory besides the plan's: twice what is staged.
// What is staged ahead, while the host has nothing else to do, is a guess: it
// is uploaded, and uploaded again where something else is staged in the end.
//
// Markers. Each lane says which node it has come to, at each unit and each
// collective; 0 when the phase is done.
//
// Report. A buffer is appended to a ring behind each run of a phase.
//
// Threads: the host thread; markers are read from any.
#ifndef GRAPH_STEP_LINK_H_
#define GRAPH_STEP_LINK_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/host_link.h"

namespace shardgraph {

class StepLink {
 public:
  static constexpr int kReports = 8;  // that the ring holds

  // `report_bytes` 0: no report. `backend`, which has a HostLink, outlives it.
  static absl::StatusOr<std::unique_ptr<StepLink>> Create(Backend* backend,
                                                          int num_lanes,
                                                          int num_phases,
                                                          int64_t report_bytes);

  // --- Inputs
  // Copies the bytes; they are at `device` when the next phase runs.
  void Stage(void* device, const void* host, int64_t bytes);
  // These bytes were put at `device` in another way.
  void Written(void* device, const void* host, int64_t bytes);
  // Before a phase that is not replayed, and before other copies: writes what
  // is staged.
  absl::Status Flush();
  // What the last Flush wrote becomes the inputs of the phase's recording.
  absl::Status BeginRecording(int phase);
  // In the capture, before everything else, on lane 0.
  void RecordTakes(int phase);
  // Between these Stage is for EndAhead's phase, which has a recording:
  // guessed. It uploads what is staged there if that is `good`.
  void BeginAhead() { ahead_ = true; }
  absl::Status EndAhead(int phase, bool good);
  // Before a replay: uploads what is staged; what the recording does not take
  // is written.
  absl::Status Hand(int phase);
  // The phase is not replayed after all.
  void Forget(int phase) { phases_[phase] = Inputs(); }

  // --- Markers
  void Mark(int lane, int64_t value) {
    link_->Mark(lane, &marks_[lane], value);
  }
  int64_t mark(int lane) const {
    return std::atomic_ref<int64_t>(marks_[lane])
        .load(std::memory_order_relaxed);
  }

  // --- Report
  void Append(int lane, const void* device) {
    link_->Append(lane, ring_, device);
  }
  // Waits for report `number` (from 0) and copies it. OutOfRange when it has
  // been overwritten by later ones.
  absl::Status ReadReport(uint64_t number, void* to, int64_t bytes);

 private:
  struct Write {
    void* device;
    int64_t begin, bytes;  // of data
  };
  // What has been copied and not yet written.
  struct Pending {
    std::vector<Write> writes;
    std::vector<char> data;

    void Add(void* device, const void* host, int64_t bytes);
    const char* At(const Write& write) const {
      return data.data() + write.begin;
    }
    void Clear() {
      writes.clear();
      data.clear();
    }
  };
  // Of a phase's recording.
  struct Inputs {
    std::vector<Write> writes;
    std::vector<char> newest;  // of all writes, one behind another
    char* shared = nullptr;    // the same for each slot, in shared memory
    UploadSlots slots;
    int64_t runs = 0;         // handed over so far
    std::vector<char> guess;  // what the next one's slot holds; or nothing
  };

  StepLink(Backend* backend, int num_phases)
      : backend_(backend), link_(HostLinkOf(backend)), phases_(num_phases) {}

  Backend* const backend_;
  HostLink* const link_;
  // Uploads `data` to the slot of the phase's next run, once that is free.
  absl::Status Upload(Inputs& inputs, const std::vector<char>& data);

  Pending staged_, flushed_, guessed_;
  bool ahead_ = false;
  std::vector<Inputs> phases_;
  int64_t* marks_ = nullptr;    // by lane
  RecordRing* ring_ = nullptr;  // null: no report
};

}  // namespace shardgraph

#endif  // GRAPH_STEP_LINK_H_
