// RunWithRestarts: runs the ranks of one host and starts all of them again when
// one has failed.
#ifndef FSDP_LAUNCH_RESTARTS_H_
#define FSDP_LAUNCH_RESTARTS_H_

#include <functional>
#include <string>

#include "absl/time/time.h"
#include "fsdp/launch/local_launcher.h"

namespace shardgraph {

struct RestartOptions {
  int max_restarts = 3;  // of all ranks, in all
  // Before the first restart. It doubles with each, up to `longest_backoff`,
  // and begins anew after ranks that ran for `healthy`.
  absl::Duration backoff = absl::Seconds(1);
  absl::Duration longest_backoff = absl::Minutes(1);
  absl::Duration healthy = absl::Minutes(10);
  // Why ranks are started again, root cause first; null: stderr.
  std::function<void(const std::string& text)> say;
  // Returns false as soon as somebody asks the launcher to stop, true after the
  // time. Null: SIGINT and SIGTERM of this process.
  std::function<bool(absl::Duration time)> wait;
};

// A wrong flag, config or input (exit status 2) would be wrong again: it ends
// the job at once, as a request to stop does. Logs of a restart are appended to
// those before it. The result is that of the last start.
LaunchResult RunWithRestarts(LocalLaunchOptions options,
                             const RestartOptions& restarts);

}  // namespace shardgraph

#endif  // FSDP_LAUNCH_RESTARTS_H_
