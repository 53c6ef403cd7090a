// Watchdog: ends a rank whose work stands still, and says where it stands.
//
// What is watched is one piece of work of the host thread at a time (a step, an
// evaluation, a save) and a number that grows as long as the work goes on. When
// the number has stood still for the limit of the piece, the watchdog
//   - prints the rank, the step and where each lane stands (unit and node, a
//     collective among them),
//   - aborts the communicators with that text, so that all ranks end with it,
//   - and, when the piece has still not ended after `grace`, ends the process.
// A collective has a timeout of its own, which names the rank that does not
// come; limits here are a little longer, for what nobody else ends: a kernel
// that never returns, data that cannot be read.
//
// There is no clock in it: Look is told how much time has passed. The thread
// that Start makes counts at most twice the interval between two looks, so that
// a process that was stopped, or its host asleep, is not late.
#ifndef FSDP_TRAIN_WATCHDOG_H_
#define FSDP_TRAIN_WATCHDOG_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace shardgraph {

struct WatchdogOptions {
  int rank = 0;
  std::function<int64_t()> advance;  // grows as long as the work goes on
  // Lines: where each lane stands; indented ones, what it did before, are only
  // printed.
  std::function<std::string()> where;
  // Makes the work end. Both get the same DeadlineExceeded, on the watchdog's
  // thread; it may take a while.
  std::function<void(const absl::Status&)> abort;
  // Ends the process.
  std::function<void(const absl::Status&)> end;
  absl::Duration grace = absl::Seconds(10);
};

class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The limit for work in which collectives and kernels may take `timeout`.
  static absl::Duration LimitOf(absl::Duration timeout);

  // Watches until it is destroyed. A null watchdog watches nothing.
  class [[nodiscard]] Watch {
   public:
    // `what` outlives it: "step", "saving after step".
    Watch(Watchdog* watchdog, const char* what, int64_t step,
          absl::Duration limit);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog* const watchdog_;
  };

  // Looks from now on, on a thread of its own.
  void Start(absl::Duration interval);
  // One look, `passed` after the one before; for Start's thread and tests.
  void Look(absl::Duration passed);

 private:
  const WatchdogOptions options_;

  std::mutex mutex_;  // of all below; not held while options_ are called
  bool watching_ = false;
  const char* what_ = nullptr;
  int64_t step_ = 0;
  absl::Duration limit_;
  bool fresh_ = false;      // no look yet
  int64_t advance_ = 0;     // at the last look
  absl::Duration still_;    // since it changed
  absl::Status reason_;     // of the abort; OK before
  absl::Duration aborted_;  // since the abort

  bool stop_ = false;
  std::condition_variable stopped_;
  std::thread thread_;
};

}  // namespace shardgraph

#endif  // FSDP_TRAIN_WATCHDOG_H_
