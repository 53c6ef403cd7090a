#include "fsdp/train/watchdog.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace shardgraph {

Watchdog::Watchdog(WatchdogOptions options) : options_(std::move(options)) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::Duration Watchdog::LimitOf(absl::Duration timeout) {
  return timeout + std::max(timeout / 10, absl::Seconds(5));
}

Watchdog::Watch::Watch(Watchdog* watchdog, const char* what, int64_t step,
                       absl::Duration limit)
    : watchdog_(watchdog) {
  if (watchdog_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(watchdog_->mutex_);
  watchdog_->watching_ = true;
  watchdog_->what_ = what;
  watchdog_->step_ = step;
  watchdog_->limit_ = limit;
  watchdog_->fresh_ = true;
}

Watchdog::Watch::~Watch() {
  if (watchdog_ == nullptr) return;
  const std::lock_guard<std::mutex> lock(watchdog_->mutex_);
  watchdog_->watching_ = false;
}

void Watchdog::Look(absl::Duration passed) {
  const int64_t advance = options_.advance();
  std::unique_lock<std::mutex> lock(mutex_);
  if (!watching_) return;
  if (!reason_.ok()) {
    aborted_ += passed;
    if (aborted_ < options_.grace) return;
    lock.unlock();
    options_.end(reason_);
    return;
  }
  if (fresh_ || advance != advance_) {
    fresh_ = false;
    advance_ = advance;
    still_ = absl::ZeroDuration();
    return;
  }
  still_ += passed;
  if (still_ < limit_) return;
  lock.unlock();
  const std::string where = options_.where();
  lock.lock();
  // It may have gone on in the meantime.
  if (!watching_ || fresh_) return;
  const std::string late = absl::StrCat(
      "rank ", options_.rank, " is late: ", what_, " ", step_,
      " has stood still for ",
      absl::FormatDuration(absl::Trunc(still_, absl::Milliseconds(100))));
  std::fprintf(stderr, "%s\n%s", late.c_str(), where.c_str());
  std::fflush(stderr);
  // What all ranks end with: without the indented lines, the last events.
  std::string reason = late;
  for (const absl::string_view line : absl::StrSplit(where, '\n')) {
    if (!line.empty() && line[0] != ' ') absl::StrAppend(&reason, "; ", line);
  }
  reason_ = absl::DeadlineExceededError(reason);
  const absl::Status status = reason_;
  lock.unlock();
  options_.abort(status);
}

void Watchdog::Start(absl::Duration interval) {
  thread_ = std::thread([this, interval] {
    using Clock = std::chrono::steady_clock;
    Clock::time_point last = Clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_.wait_for(lock, absl::ToChronoNanoseconds(interval),
                              [this] { return stop_; })) {
      lock.unlock();
      const Clock::time_point now = Clock::now();
      Look(std::min(absl::FromChrono(now - last), 2 * interval));
      last = now;
      lock.lock();
    }
  });
}

}  // namespace shardgraph
