// LaneThread: one lane of a CPU backend, a thread that runs commands in order.
//
// The host thread alone pushes; the lane's thread alone runs. Commands are
// small and live in a ring that is made once: nothing is allocated per command.
#ifndef KERNELS_CPU_LANE_THREAD_H_
#define KERNELS_CPU_LANE_THREAD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/signal.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernel.h"
#include "kernels/lane.h"

namespace shardgraph {

// The first error of any lane of a backend.
class FirstError {
 public:
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  void Set(const absl::Status& status);
  absl::Status Get() const;

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  absl::Status status_;
};

// Positions count Records of a lane, modulo 2^32.
struct Command {
  enum class Kind : uint8_t {
    kLaunch,   // run `kernel`
    kRecord,   // pass one more position
    kWait,     // until `lane` has passed `position`
    kBarrier,  // the same, and later programs count positions of `lane` from it
    kProgram,  // run `program`, whose positions are relative
    kStop,     // end the thread
  };
  Kind kind = Kind::kStop;
  int lane = 0;
  uint32_t position = 0;
  PreparedKernel* kernel = nullptr;
  const std::vector<Command>* program = nullptr;
};

class LaneThread {
 public:
  LaneThread(int index, int num_lanes, int threads, const CpuSet& binding,
             FirstError* error);

  // Starts the thread; `lanes` holds all lanes of the backend and stays.
  void Start(const std::vector<std::unique_ptr<LaneThread>>* lanes);
  // Drains and ends the thread; before any lane is destroyed.
  void Stop();

  // True when Push must wait for room; publish all lanes first, since this one
  // may wait for them.
  bool full() const;
  void Push(const Command& command);
  // Makes pushed commands visible to the thread and wakes it.
  void Publish();
  // Blocks until everything published has run.
  void Drain();

 private:
  static constexpr uint32_t kCapacity = 1024;  // a power of two
  // Positions in the future of another lane look negative.
  static bool Reached(uint32_t passed, uint32_t position) {
    return static_cast<int32_t>(passed - position) >= 0;
  }
  // Sleepers are told apart by the position they wait for.
  static uint32_t Mask(uint32_t position) { return 1u << (position % 32); }

  void Main();
  void Run(const Command& command);
  void Launch(PreparedKernel* kernel);
  void Record();
  void AwaitLane(int lane, uint32_t position);

  const CpuSet binding_;
  FirstError* const error_;
  const std::unique_ptr<ThreadPool> pool_;
  const std::vector<std::unique_ptr<LaneThread>>* lanes_ = nullptr;
  Lane lane_;
  std::vector<Command> ring_;
  std::vector<uint32_t> base_;  // of the lane's thread: position 0 of programs

  uint32_t pushed_ = 0;           // of the host thread
  uint32_t published_ = 0;        // of the host thread
  alignas(64) Signal submitted_;  // commands published
  alignas(64) Signal completed_;  // commands run
  alignas(64) Signal passed_;     // Records run
  std::thread thread_;
};

}  // namespace shardgraph

#endif  // KERNELS_CPU_LANE_THREAD_H_
