#include "fsdp/data/prefetch.h"

#include <utility>

#include "kernels/check.h"

namespace shardgraph {

BatchPrefetcher::BatchPrefetcher(Fill fill, int64_t micro_batches, int depth)
    : fill_(std::move(fill)), micro_batches_(micro_batches), slots_(depth) {
  SG_CHECK(micro_batches >= 1 && depth >= 1);
  thread_ = std::thread([this] { Run(); });
}

BatchPrefetcher::~BatchPrefetcher() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    end_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

absl::Status BatchPrefetcher::Next(int64_t step, int64_t micro, Batch* batch) {
  const int64_t number = step * micro_batches_ + micro;
  std::unique_lock<std::mutex> lock(mutex_);
  if (!started_ || number != wanted_) {
    wanted_ = filled_ = number;
    restart_ = started_;  // what is being filled is not wanted
    started_ = true;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return filled_ > number; });
  Slot& slot = slots_[number % slots_.size()];
  std::swap(slot.batch, *batch);
  const absl::Status status = slot.status;
  ++wanted_;
  changed_.notify_all();
  return status;
}

void BatchPrefetcher::Run() {
  const int64_t depth = static_cast<int64_t>(slots_.size());
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(
        lock, [&] { return end_ || (started_ && filled_ < wanted_ + depth); });
    if (end_) return;
    restart_ = false;
    const int64_t number = filled_;
    Slot& slot = slots_[number % depth];
    // The slot is nobody else's: its number is in none that Next may take.
    lock.unlock();
    slot.status =
        fill_(number / micro_batches_, number % micro_batches_, &slot.batch);
    lock.lock();
    if (restart_) continue;
    ++filled_;
    changed_.notify_all();
  }
}

}  // namespace shardgraph
