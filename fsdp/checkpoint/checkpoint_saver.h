// CheckpointSaver: saves a rank's checkpoints beside its training.
//
// Between two steps it copies the state into host memory (the plan counts it)
// and lets a thread of its own write the copy (checkpoint.h); steps go on
// meanwhile. A save waits for the one before it, and for nothing else. One that
// fails (a full disk, a folder that cannot be written) is said and forgotten:
// the run goes on. One that stands still raises an alarm, and while it does,
// later ones are left out on all ranks; no rank waits for it.
#ifndef FSDP_CHECKPOINT_CHECKPOINT_SAVER_H_
#define FSDP_CHECKPOINT_CHECKPOINT_SAVER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/save_progress.h"
#include "fsdp/checkpoint/snapshot.h"

namespace shardgraph {

struct CheckpointSaverOptions {
  CheckpointRank rank;
  std::string folder;
  // In a world of one both are null. `store` outlives the saver.
  Store* store = nullptr;
  std::map<std::string, std::string> extra;  // of each manifest
  // Collective: the largest number over all ranks.
  std::function<absl::StatusOr<int64_t>(int64_t mine)> max;
  // Alarms and failures, a line each; from any thread. Null: stderr.
  std::function<void(const std::string& line)> say;
  // For tests. Null: the clock, the file system.
  std::function<absl::Time()> now;
  std::function<absl::StatusOr<int64_t>(const std::string& path)> free_bytes;
};

// Of the training's host thread. With checkpoint.asynchronous false there is
// no copy and Save returns when the rank has written.
class CheckpointSaver {
 public:
  explicit CheckpointSaver(CheckpointSaverOptions options);
  // Cancels what runs and waits for it; see Cancel.
  ~CheckpointSaver();
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;

  // Collective, between two steps: begins to save what `step` steps have made.
  // Not OK only when the ranks did not meet or the state cannot be copied.
  absl::Status Save(int64_t step);
  // The same, and waits until it is on the disk; then its result, not OK on
  // every rank when it failed on one. DeadlineExceeded: a save was not done
  // within checkpoint.timeout_seconds.
  absl::Status SaveAndWait(int64_t step);

  // Whether no save of this rank runs.
  bool Idle() { return MyState() == kIdle; }
  // How long the last copy took.
  absl::Duration copy_time() const { return copy_time_; }

  // After each step: raises the alarm when the save that runs stands still.
  void Look();

  // Makes the save that runs end soon; whether it has, within `grace`. One that
  // is stuck in the file system does not, and must not be destroyed.
  bool Cancel(absl::Duration grace);

 private:
  // What ranks tell each other before a save, by weight.
  enum State : int64_t { kIdle = 0, kWrites = 1, kStalled = 2 };

  void Say(const std::string& line) const;
  State MyState();
  absl::StatusOr<int64_t> Max(int64_t mine) const;
  // Waits a moment for the end of the save that runs; looks.
  void WaitBriefly();
  // Collective: until no rank writes; within the timeout of a save.
  absl::Status WaitForAll();
  void Start(int64_t step);
  absl::Status Write(int64_t step, int64_t number);
  void Serve();

  const CheckpointSaverOptions options_;
  const CheckpointSpec& spec_;
  const bool writes_;  // replicas do not
  std::unique_ptr<Snapshot> snapshot_;
  SaveProgress progress_;
  int64_t saves_ = 0;  // so far, the same on all ranks
  absl::Duration copy_time_;

  // Of Look.
  int64_t seen_ = 0;  // the progress at the last change
  absl::Time changed_, started_;
  bool stalled_ = false;

  std::mutex mutex_;  // of all below
  std::condition_variable job_changed_;
  bool stop_ = false;
  bool running_ = false;
  int64_t step_ = 0;     // of the save that runs, or ran last
  absl::Status result_;  // of the last save
  std::thread thread_;
};

}  // namespace shardgraph

#endif  // FSDP_CHECKPOINT_CHECKPOINT_SAVER_H_
