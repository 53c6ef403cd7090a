// RankProcess: one rank that the local launcher has started: its process, its
// output and how it ended.
#ifndef FSDP_LAUNCH_RANK_PROCESS_H_
#define FSDP_LAUNCH_RANK_PROCESS_H_

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "fsdp/launch/environment.h"

namespace shardgraph {

class RankProcess {
 public:
  struct Options {
    int rank = 0;
    std::vector<std::string> command;
    EnvironmentMap environment;  // all of it
    std::string log_path;        // empty: our own output
    bool append = false;         // to the log
    bool pass_on = false;        // to our own output, beside the log
    sigset_t signal_mask;        // of the new process
  };

  // Starts the process, in a process group of its own. It is killed when the
  // calling thread ends.
  absl::Status Start(const Options& options);
  ~RankProcess();

  RankProcess() = default;
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int rank() const { return rank_; }
  bool running() const { return pid_ > 0 && !ended_; }
  // True once, when the process has ended.
  bool Reap();
  // To the whole process group.
  void Kill(int signal) const;

  // Descriptors to poll for output; -1 where there is none.
  int output_fd(int i) const { return pipes_[i]; }
  // Moves what is there to the log and our own output, without blocking.
  void PassOn();

  // Of a process that has ended.
  bool failed() const { return !ended_ || wait_status_ != 0; }
  bool killed_by_signal() const;
  int exit_code() const;  // -1 when killed by a signal
  // "rank 1 exited with status 2", "rank 1 was killed by signal 9 (Killed)".
  std::string Describe() const;

 private:
  int rank_ = 0;
  pid_t pid_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
  int log_ = -1;
  int pipes_[2] = {-1, -1};  // its stdout and stderr, when passed on
};

// The last lines of a text file, at most so many; empty when it cannot be read.
std::string LastLines(const std::string& path, int lines);

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_RANK_PROCESS_H_
