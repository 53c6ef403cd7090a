// SaveProgress: how far a save has come. Another thread can look at it and end
// the save; it also holds the save to a rate.
#ifndef FSDP_CHECKPOINT_SAVE_PROGRESS_H_
#define FSDP_CHECKPOINT_SAVE_PROGRESS_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace shardgraph {

// Thread safe.
class SaveProgress {
 public:
  // 0: no limit.
  explicit SaveProgress(double bytes_per_second = 0)
      : bytes_per_second_(bytes_per_second) {}

  // Before a save; forgets what was before.
  void Begin();
  // The thread that saves has written `bytes`; returns when it may go on.
  // Cancelled when it is to end, here and below.
  absl::Status Wrote(int64_t bytes);
  // Waits, for another rank.
  absl::Status Pause(absl::Duration duration);

  // Ends the save as soon as its thread asks.
  void Cancel();
  // Grows as long as the save goes on.
  int64_t advance() const;
  int64_t bytes_written() const;

 private:
  absl::Status WaitUntil(std::unique_lock<std::mutex>& lock, absl::Time time);

  const double bytes_per_second_;
  mutable std::mutex mutex_;  // of all below
  std::condition_variable cancelled_changed_;
  bool cancelled_ = false;
  int64_t advance_ = 0;
  int64_t bytes_ = 0;
  absl::Time begin_;  // of what the rate is counted from
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_SAVE_PROGRESS_H_
