// StopSignal: SIGTERM and SIGINT as a request to stop, which is noted instead
// of ending the process.
//
// A second SIGINT, from somebody who does not want to wait, ends the process; a
// second SIGTERM does not, since launchers may send several.
#ifndef FSDP_LAUNCH_STOP_SIGNAL_H_
#define FSDP_LAUNCH_STOP_SIGNAL_H_

#include <signal.h>

namespace shardgraph {

// One at a time in a process; the signals do what they did before when it is
// destroyed.
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  // The first signal that has come; 0: none. From any thread.
  int received() const;

 private:
  struct sigaction terminate_before_;
  struct sigaction interrupt_before_;
};

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_STOP_SIGNAL_H_
