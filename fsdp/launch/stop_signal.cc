#include "fsdp/launch/stop_signal.h"

#include <atomic>

namespace shardgraph {
namespace {

// Of the process: all that a signal handler can reach.
std::atomic<int> first_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

void Note(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
}

}  // namespace

StopSignal::StopSignal() {
  first_signal.store(0);
  struct sigaction action = {};
  action.sa_handler = Note;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &terminate_before_);
  action.sa_flags |= SA_RESETHAND;
  sigaction(SIGINT, &action, &interrupt_before_);
}

StopSignal::~StopSignal() {
  sigaction(SIGTERM, &terminate_before_, nullptr);
  sigaction(SIGINT, &interrupt_before_, nullptr);
}

int StopSignal::received() const { return first_signal.load(); }

}  // namespace shardgraph
