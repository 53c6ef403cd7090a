#include "fsdp/launch/restarts.h"

#include <errno.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace shardgraph {
namespace {

bool WaitForSignals(absl::Duration time) {
  sigset_t set, before;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM}) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, &before);
  const absl::Time end = absl::Now() + time;
  int got = -1;
  do {
    const timespec left =
        absl::ToTimespec(std::max(end - absl::Now(), absl::ZeroDuration()));
    got = sigtimedwait(&set, nullptr, &left);
  } while (got < 0 && errno == EINTR);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return got < 0;
}

void SayToStderr(const std::string& text) {
  std::fprintf(stderr, "launch: %s\n", text.c_str());
  std::fflush(stderr);
}

}  // namespace

LaunchResult RunWithRestarts(LocalLaunchOptions options,
                             const RestartOptions& restarts) {
  const auto say = restarts.say != nullptr ? restarts.say : SayToStderr;
  const auto wait = restarts.wait != nullptr ? restarts.wait : WaitForSignals;
  absl::Duration backoff = restarts.backoff;
  for (options.restart_count = 0;; ++options.restart_count) {
    const absl::Time begin = absl::Now();
    LaunchResult result = RunLocalRanks(options);
    if (result.exit_status == 0 || result.stopped) return result;
    if (result.exit_status == 2) return result;
    if (options.restart_count >= restarts.max_restarts) {
      if (restarts.max_restarts > 0) {
        absl::StrAppend(&result.message, "\ngiven up after ",
                        restarts.max_restarts, " restarts");
      }
      return result;
    }
    if (absl::Now() - begin >= restarts.healthy) backoff = restarts.backoff;
    say(absl::StrCat(result.message, "\nrestart ", options.restart_count + 1,
                     " of at most ", restarts.max_restarts, " in ",
                     absl::FormatDuration(backoff)));
    if (!wait(backoff)) {
      result.stopped = true;
      absl::StrAppend(&result.message, "\nstopped on request before a restart");
      return result;
    }
    backoff = std::min(2 * backoff, restarts.longest_backoff);
  }
}

}  // namespace shardgraph
