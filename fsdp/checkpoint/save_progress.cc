#include "fsdp/checkpoint/save_progress.h"

#include <algorithm>
#include <chrono>

#include "absl/time/clock.h"

namespace shardgraph {

void SaveProgress::Begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++advance_;
  bytes_ = 0;
  begin_ = absl::Now();
}

absl::Status SaveProgress::Wrote(int64_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++advance_;
  bytes_ += bytes;
  return WaitUntil(lock,
                   bytes_per_second_ > 0
                       ? begin_ + absl::Seconds(bytes_ / bytes_per_second_)
                       : absl::InfinitePast());
}

absl::Status SaveProgress::Pause(absl::Duration duration) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++advance_;
  return WaitUntil(lock, absl::Now() + duration);
}

absl::Status SaveProgress::WaitUntil(std::unique_lock<std::mutex>& lock,
                                     absl::Time time) {
  for (;;) {
    if (cancelled_) return absl::CancelledError("the save was given up");
    const absl::Duration left = time - absl::Now();
    if (left <= absl::ZeroDuration()) return absl::OkStatus();
    // A limited rate is no stall: the number goes on growing.
    cancelled_changed_.wait_for(lock, absl::ToChronoNanoseconds(std::min(
                                          left, absl::Milliseconds(50))));
    ++advance_;
  }
}

void SaveProgress::Cancel() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
  }
  cancelled_changed_.notify_all();
}

int64_t SaveProgress::advance() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return advance_;
}

int64_t SaveProgress::bytes_written() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return bytes_;
}

}  // namespace shardgraph
