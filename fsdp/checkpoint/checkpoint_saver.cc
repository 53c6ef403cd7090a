#include "fsdp/checkpoint/checkpoint_saver.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/internal_error.h"
#include "kernels/status_macros.h"

namespace shardgraph {
namespace {

constexpr std::chrono::milliseconds kLook(50);

std::string Seconds(absl::Duration duration) {
  return absl::FormatDuration(absl::Trunc(duration, absl::Milliseconds(100)));
}

}  // namespace

CheckpointSaver::CheckpointSaver(CheckpointSaverOptions options)
    : options_(std::move(options)),
      spec_(options_.rank.config->checkpoint()),
      writes_(options_.rank.rank < options_.rank.plan->groups.shard),
      progress_(spec_.write_mb_per_second() * 1e6) {
  if (!spec_.asynchronous() || !writes_) return;
  snapshot_ =
      std::make_unique<Snapshot>(*options_.rank.plan, options_.rank.rank);
  thread_ = std::thread([this] { Serve(); });
}

CheckpointSaver::~CheckpointSaver() {
  progress_.Cancel();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  job_changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CheckpointSaver::Say(const std::string& line) const {
  if (options_.say != nullptr) return options_.say(line);
  std::fprintf(stderr, "%s\n", line.c_str());
  std::fflush(stderr);
}

absl::StatusOr<int64_t> CheckpointSaver::Max(int64_t mine) const {
  return options_.max == nullptr ? mine : options_.max(mine);
}

void CheckpointSaver::Look() {
  const absl::Time now = options_.now == nullptr ? absl::Now() : options_.now();
  int64_t step = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!running_) {
      stalled_ = false;
      return;
    }
    step = step_;
  }
  const int64_t advance = progress_.advance();
  if (advance != seen_) {
    if (stalled_) {
      Say(absl::StrCat("rank ", options_.rank.rank, ": saving after step ",
                       step, " goes on"));
    }
    seen_ = advance;
    changed_ = now;
    stalled_ = false;
  } else if (!stalled_ &&
             now - changed_ >= absl::Seconds(spec_.stall_seconds())) {
    stalled_ = true;
    Say(absl::StrCat(
        "ALARM: rank ", options_.rank.rank, ": saving after step ", step,
        " has stood still for ", Seconds(now - changed_), " (",
        progress_.bytes_written(), " bytes are written): does the disk of ",
        options_.folder,
        " answer? Training goes on; no checkpoint is made meanwhile"));
  }
}

CheckpointSaver::State CheckpointSaver::MyState() {
  Look();
  if (stalled_) return kStalled;
  const std::lock_guard<std::mutex> lock(mutex_);
  return running_ ? kWrites : kIdle;
}

void CheckpointSaver::WaitBriefly() {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    job_changed_.wait_for(lock, kLook, [this] { return !running_; });
  }
  Look();
}

absl::Status CheckpointSaver::Save(int64_t step) {
  for (;;) {
    const State mine = MyState();
    SG_ASSIGN_OR_RETURN(const int64_t all, Max(mine));
    if (all == kStalled) {
      const std::lock_guard<std::mutex> lock(mutex_);
      result_ = absl::UnavailableError(
          absl::StrCat("the checkpoint after step ", step,
                       " is left out: the one after step ", step_,
                       " stands still, see the rank that raised the alarm"));
      if (options_.rank.rank == 0) Say(std::string(result_.message()));
      return absl::OkStatus();
    }
    if (all == kIdle) break;
    // Not until the end: rank 0 may wait for the part of one that stalls.
    if (mine == kWrites) WaitBriefly();
  }
  ++saves_;
  if (!writes_) {
    const std::lock_guard<std::mutex> lock(mutex_);
    step_ = step;
    result_ = absl::OkStatus();
    return spec_.asynchronous() ? absl::OkStatus() : Max(0).status();
  }
  if (snapshot_ != nullptr) {
    const absl::Time begin = absl::Now();
    SG_RETURN_IF_ERROR(snapshot_->Take(*options_.rank.executor));
    copy_time_ = absl::Now() - begin;
  }
  Start(step);
  // The others wait here, not in a collective of the next step.
  return spec_.asynchronous() ? absl::OkStatus() : Max(0).status();
}

void CheckpointSaver::Start(int64_t step) {
  started_ = changed_ = options_.now == nullptr ? absl::Now() : options_.now();
  seen_ = progress_.advance();
  stalled_ = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    step_ = step;
    running_ = true;
  }
  if (snapshot_ != nullptr) {
    job_changed_.notify_all();
    return;
  }
  const absl::Status result = Write(step, saves_);
  const std::lock_guard<std::mutex> lock(mutex_);
  running_ = false;
  result_ = result;
}

absl::Status CheckpointSaver::Write(int64_t step, int64_t number) {
  SaveOptions save;
  save.folder = options_.folder;
  save.step = step;
  save.extra = options_.extra;
  save.store = options_.store;
  save.store_key = absl::StrCat("checkpoint/", number);
  save.timeout = absl::Seconds(spec_.timeout_seconds());
  save.snapshot = snapshot_.get();
  save.progress = &progress_;
  save.free_bytes = options_.free_bytes;
  const absl::Status status = AsInternal(SaveCheckpoint(options_.rank, save));
  if (status.ok() || absl::IsCancelled(status)) return status;
  Say(absl::StrCat("rank ", options_.rank.rank, ": the checkpoint after step ",
                   step, " is not saved: ", status.message(),
                   "; training goes on"));
  return status;
}

void CheckpointSaver::Serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    job_changed_.wait(lock, [this] { return stop_ || running_; });
    if (!running_) return;
    const int64_t step = step_, number = saves_;
    lock.unlock();
    const absl::Status result = Write(step, number);
    lock.lock();
    running_ = false;
    result_ = result;
    job_changed_.notify_all();
  }
}

absl::Status CheckpointSaver::WaitForAll() {
  const absl::Duration timeout = absl::Seconds(spec_.timeout_seconds());
  // Rank 0 gives up first, and says which rank it has waited for.
  const absl::Duration limit =
      timeout + std::min(timeout / 10, absl::Seconds(5));
  absl::Status late;
  while (MyState() != kIdle) {
    const absl::Time now =
        options_.now == nullptr ? absl::Now() : options_.now();
    if (now - started_ >= limit) {
      const std::lock_guard<std::mutex> lock(mutex_);
      late = absl::DeadlineExceededError(
          absl::StrCat("rank ", options_.rank.rank, ": saving after step ",
                       step_, " is not done within ", Seconds(timeout), ", ",
                       progress_.bytes_written(),
                       " bytes are written; where the disk is slow, raise "
                       "checkpoint.timeout_seconds"));
      break;
    }
    WaitBriefly();
  }
  SG_ASSIGN_OR_RETURN(const int64_t anybody, Max(late.ok() ? 0 : 1));
  if (!late.ok() || anybody == 0) return late;
  return absl::DeadlineExceededError(
      "another rank is not done with its part of a checkpoint; its log says "
      "why");
}

absl::Status CheckpointSaver::SaveAndWait(int64_t step) {
  SG_RETURN_IF_ERROR(WaitForAll());
  SG_RETURN_IF_ERROR(Save(step));
  SG_RETURN_IF_ERROR(WaitForAll());
  absl::Status result;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    result = result_;
  }
  SG_ASSIGN_OR_RETURN(const int64_t anybody, Max(result.ok() ? 0 : 1));
  if (!result.ok() || anybody == 0) return result;
  return absl::UnavailableError(
      absl::StrCat("the checkpoint after step ", step,
                   " is not saved; the log of another rank says why"));
}

bool CheckpointSaver::Cancel(absl::Duration grace) {
  progress_.Cancel();
  std::unique_lock<std::mutex> lock(mutex_);
  return job_changed_.wait_for(
      lock, absl::ToChronoNanoseconds(std::min(grace, absl::Hours(24 * 365))),
      [this] { return !running_; });
}

}  // namespace shardgraph
