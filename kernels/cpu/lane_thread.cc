#include "kernels/cpu/lane_thread.h"

#include <algorithm>
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace shardgraph {

void FirstError::Set(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = status;
  failed_.store(true, std::memory_order_relaxed);
}

absl::Status FirstError::Get() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

LaneThread::LaneThread(int index, int num_lanes, int threads,
                       const CpuSet& binding, FirstError* error)
    : binding_(binding),
      error_(error),
      pool_(MakeThreadPool(threads, binding)),
      lane_{.index = index, .pool = pool_.get()},
      ring_(kCapacity),
      base_(num_lanes, 0) {}

void LaneThread::Start(const std::vector<std::unique_ptr<LaneThread>>* lanes) {
  lanes_ = lanes;
  thread_ = std::thread([this] { Main(); });
}

void LaneThread::Stop() {
  Drain();
  Push({.kind = Command::Kind::kStop});
  Publish();
  thread_.join();
}

bool LaneThread::full() const {
  return pushed_ - completed_.Load() == kCapacity;
}

void LaneThread::Push(const Command& command) {
  if (full()) {
    completed_.Await(
        [this](uint32_t run) { return pushed_ - run < kCapacity; });
  }
  ring_[pushed_ % kCapacity] = command;
  ++pushed_;
}

void LaneThread::Publish() {
  if (pushed_ == published_) return;
  submitted_.Add(pushed_ - published_);
  submitted_.Wake();
  published_ = pushed_;
}

void LaneThread::Drain() {
  completed_.Await([this](uint32_t run) { return run == published_; });
}

void LaneThread::Main() {
  BindThisThread(binding_);
  // Room is given back in pieces, so that the host can go on meanwhile.
  constexpr uint32_t kPiece = kCapacity / 4;
  uint32_t run = 0;
  for (;;) {
    const uint32_t submitted =
        submitted_.Await([run](uint32_t value) { return value != run; });
    while (run != submitted) {
      const uint32_t count = std::min(submitted - run, kPiece);
      for (uint32_t i = 0; i < count; ++i, ++run) {
        const Command& command = ring_[run % kCapacity];
        if (command.kind == Command::Kind::kStop) return;
        Run(command);
      }
      completed_.Add(count);
      completed_.Wake();
    }
  }
}

void LaneThread::Run(const Command& command) {
  switch (command.kind) {
    case Command::Kind::kLaunch:
      return Launch(command.kernel);
    case Command::Kind::kRecord:
      return Record();
    case Command::Kind::kWait:
      return AwaitLane(command.lane, command.position);
    case Command::Kind::kBarrier:
      base_[command.lane] = command.position;
      return AwaitLane(command.lane, command.position);
    case Command::Kind::kProgram:
      for (const Command& step : *command.program) {
        if (step.kind == Command::Kind::kLaunch) {
          Launch(step.kernel);
        } else if (step.kind == Command::Kind::kRecord) {
          Record();
        } else {
          AwaitLane(step.lane, base_[step.lane] + step.position);
        }
      }
      return;
    case Command::Kind::kStop:
      return;
  }
}

void LaneThread::Launch(PreparedKernel* kernel) {
  if (error_->failed()) return;
  const absl::Status status = kernel->Launch(lane_);
  if (!status.ok()) error_->Set(status);
}

void LaneThread::Record() {
  const uint32_t passed = passed_.Add(1);
  passed_.Wake(INT_MAX, Mask(passed));
}

void LaneThread::AwaitLane(int lane, uint32_t position) {
  (*lanes_)[lane]->passed_.Await(
      [position](uint32_t passed) { return Reached(passed, position); },
      Mask(position));
}

}  // namespace shardgraph
